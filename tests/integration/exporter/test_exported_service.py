"""A service and its exporter process, up to a receiver: what each has, and what is left when one of them is killed."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from typing import Any

import pytest
from exporter_processes import find_exporters, wait_for_end
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built")


def _service(receiver_url: str, *arguments: str, **settings: str) -> Target:
    return Target("exported_service.py", *arguments, env=profiling_settings(receiver_url, 10, **settings))


def _is_of_cart(record: dict[str, Any]) -> bool:
    return ".price_items(" in record["body"] and bool(record["span_id"])


@pytest.mark.parametrize("data_format", ["text", "pprof-gzip-base64"])
def test_service_has_no_grpc_and_its_records_are_its_own(data_format: str) -> None:
    with Receiver() as receiver:
        settings = {"SPLUNK_PROFILER_DATA_FORMAT": data_format, "SPLUNK_PROFILER_EXPORT_INTERVAL": "200"}
        with _service(receiver.url, **settings) as target:
            records = receiver.records(3)
            (exporter,) = find_exporters(target.pid)
            target.tell("modules")
            loaded = target.json("modules")
            target.tell("stop")
            assert target.finish() == 0, target.output
        wait_for_end(exporter)
    assert loaded["grpc"] == []
    assert "splunk-profiler-exporter" not in loaded["threads"]
    for record in records:
        assert (record["resource"]["service.name"], record["resource"]["process.pid"]) == ("exported", target.pid)


def test_killed_exporter_is_started_again_and_records_go_on() -> None:
    with Receiver() as receiver, _service(receiver.url) as target:
        receiver.record(_is_of_cart)
        (first,) = find_exporters(target.pid)
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        target.line("the exporter process ended and was started again")
        killed_ns = max(record["time_ns"] for record in receiver.records(1))
        receiver.record(lambda record: _is_of_cart(record) and record["time_ns"] > killed_ns)
        assert first not in find_exporters(target.pid)
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_killed_service_leaves_no_exporter() -> None:
    with Receiver() as receiver:
        with _service(receiver.url) as target:
            receiver.record(_is_of_cart)
            (exporter,) = find_exporters(target.pid)
            target.signal(signal.SIGKILL)
            assert target.finish() == -signal.SIGKILL
        wait_for_end(exporter)


def test_failed_delivery_is_logged_by_the_service() -> None:
    with _service("http://127.0.0.1:9") as target:
        assert "no collector can be reached" in target.line("profiling records are not delivered:")
        target.tell("stop")
        assert target.finish() == 0, target.output


@pytest.mark.parametrize(("exporter", "reason"), [("auto", "frozen"), ("thread", "SPLUNK_PROFILER_EXPORTER=thread")])
def test_service_without_an_exporter_process_exports_by_itself(exporter: str, reason: str) -> None:
    arguments = ["frozen"] if exporter == "auto" else []
    with Receiver() as receiver, _service(receiver.url, *arguments, SPLUNK_PROFILER_EXPORTER=exporter) as target:
        receiver.record(_is_of_cart)
        assert find_exporters(target.pid) == [], reason
        target.tell("modules")
        assert "splunk-profiler-exporter" in target.json("modules")["threads"]
        target.tell("stop")
        assert target.finish() == 0, target.output
