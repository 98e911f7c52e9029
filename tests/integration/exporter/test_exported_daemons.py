"""A service that becomes a daemon, or closes all descriptors as daemons do: with either exporter."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from exporter_processes import find_exporters, wait_for_end
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built")

_FLOOD = 10_000  # characters; gRPC would have written 25 MB in a second
_CLOSED = "profiling records are not delivered: the application has closed the descriptors of gRPC"


def _service(receiver_url: str, exporter: str, **settings: str) -> Target:
    env = profiling_settings(receiver_url, 10, SPLUNK_PROFILER_EXPORTER=exporter, **settings)
    return Target("exported_service.py", env=env)


def _is_of_cart(record: dict[str, Any]) -> bool:
    return ".price_items(" in record["body"] and bool(record["span_id"])


def test_service_that_becomes_a_daemon_is_exported_under_its_new_pid() -> None:
    with Receiver() as receiver, _service(receiver.url, "process") as target:
        receiver.record(_is_of_cart)
        (exporter,) = find_exporters(target.pid)
        target.tell("daemon")
        pid = target.json("daemon")
        receiver.record(lambda record: _is_of_cart(record) and record["resource"]["process.pid"] == pid)
        target.tell("stop")
        assert target.finish() == 0, target.output
        for process in (pid, exporter, *find_exporters(pid)):
            wait_for_end(process)


def test_service_whose_threads_export_into_closed_descriptors_says_so_once() -> None:
    with Receiver() as receiver, _service(receiver.url, "thread") as target:
        receiver.record(_is_of_cart)
        receiver.switch("hang")
        receiver.exports(1, answer="hang")
        target.tell("close all")
        target.line(_CLOSED)
        target.tell("wait")
        assert target.json("waited") == 1  # neither gRPC nor anything of ours keeps it from forking
        target.tell("stop")
        assert target.finish() == 0, target.output
        assert len(target.output) < _FLOOD


def test_descriptors_of_grpc_that_are_the_applications_now_get_nothing() -> None:
    """Its first requests have been answered, and the next are due after five seconds."""
    with Receiver() as receiver, _service(receiver.url, "thread", SPLUNK_PROFILER_EXPORT_INTERVAL="5000") as target:
        receiver.records(1)
        target.tell("price")
        target.line("price")
        target.tell("reuse")
        target.line("reuse")
        target.tell("wait")
        assert target.json("waited") == 1
        target.line(_CLOSED)
        target.tell("received")
        assert target.line("bytes") == "0"
        target.tell("stop")
        assert target.finish() == 0, target.output
        assert len(target.output) < _FLOOD


def test_daemon_of_a_service_whose_threads_export_says_that_they_cannot() -> None:
    with Receiver() as receiver, _service(receiver.url, "thread") as target:
        receiver.record(_is_of_cart)
        target.tell("daemon")
        target.line(_CLOSED)
        target.tell("wait")
        assert target.json("waited") == 1
        target.tell("stop")
        assert target.finish() == 0, target.output
        wait_for_end(target.json("daemon"))
        assert len(target.output) < _FLOOD
