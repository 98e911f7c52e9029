"""Settings of the connection, and lines on deliveries, in a real service: by an exporter process, and by threads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from answering_server import AnsweringServer, http_response
from certificates import CertificateFiles
from counting_relay import CountingRelay
from receiver_process import Receiver
from target_process import Target, profiling_settings

_NOT_DELIVERED = "profiling records are not delivered: "
_DELIVERED_AGAIN = "profiling records are delivered again; "

pytestmark = [
    pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built"),
    pytest.mark.parametrize("exporter", ["process", "thread"]),
]


def _service(url: str, exporter: str, condition: str = "informed", **settings: str) -> Target:
    env = profiling_settings(url, 10, SPLUNK_PROFILER_EXPORTER=exporter, **settings)
    return Target("exported_service.py", condition, env=env)


def _stop(target: Target) -> None:
    target.tell("stop")
    assert target.finish() == 0, target.output


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_records_are_compressed_as_the_setting_for_logs_says(compression: str, exporter: str) -> None:
    settings = {
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none" if compression == "gzip" else "gzip",
        "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION": compression,
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "500",
    }
    with Receiver() as receiver:
        relay = CountingRelay(receiver)
        with _service(relay.url, exporter, **settings) as target:
            receiver.records(200)
            _stop(target)
        sent = relay.bytes_sent()
        receiver.catch_up()
        size = sum(export["size"] for export in receiver.exports())
    assert (sent < size / 2) is (compression == "gzip")


LATE_PROVIDER = """
import sys, time
import splunk_profiler
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
assert splunk_profiler.start()
while time.process_time() < 0.8: sum(range(1000))  # long enough to be sampled
print("named", time.time_ns(), flush=True)
trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "late"})))
sys.stdin.readline()
splunk_profiler.stop(30)
"""


def test_first_records_wait_for_the_name_of_the_service(exporter: str) -> None:
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, SPLUNK_PROFILER_EXPORTER=exporter)
        with Target(sys.executable, "-c", LATE_PROVIDER, env=env) as target:
            named_ns = target.json("named")
            receiver.record(lambda record: record["time_ns"] > named_ns)
            _stop(target)
        records = receiver.records()
    assert min(record["time_ns"] for record in records) < named_ns
    assert {record["resource"]["service.name"] for record in records} == {"late"}


def test_export_without_an_answer_ends_at_the_timeout_for_logs(exporter: str) -> None:
    settings = {"OTEL_EXPORTER_OTLP_TIMEOUT": "600", "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "0.5"}
    with Receiver(mode="hang") as receiver, _service(receiver.url, exporter, **settings) as target:
        assert "no answer within 0.5 s" in target.line(_NOT_DELIVERED)
        receiver.switch("ok")
        receiver.records(1)
        _stop(target)


def _expect_both_lines(target: Target, reason: str, mend: Callable[[], object]) -> None:
    assert reason in target.line(_NOT_DELIVERED)
    mend()
    target.line(_DELIVERED_AGAIN)
    _stop(target)
    assert target.output.count(_NOT_DELIVERED) == target.output.count(_DELIVERED_AGAIN) == 1


def test_collector_that_is_unavailable_and_back_is_logged_by_the_service(exporter: str) -> None:
    with Receiver(mode="refuse UNAVAILABLE") as receiver, _service(receiver.url, exporter) as target:
        _expect_both_lines(target, "refused with UNAVAILABLE", lambda: receiver.switch("ok"))


def test_agent_that_is_unavailable_and_back_is_logged_by_the_service(exporter: str) -> None:
    with AnsweringServer(http_response(503, "starting"), http_response(200)) as server:
        output = {"SPLUNK_PROFILER_OUTPUT": f"datadog:http://127.0.0.1:{server.port}"}
        with _service("http://127.0.0.1:9", exporter, **output) as target:
            _expect_both_lines(target, "answered 503 (starting)", lambda: None)


def test_service_that_never_ends_an_import_is_exported(exporter: str) -> None:
    with Receiver() as receiver, _service(receiver.url, exporter, "importing") as target:
        receiver.records(1)
        target.tell("modules")
        importers = target.json("modules")["importers"]
        assert importers == (["splunk-profiler-exporter"] if exporter == "thread" else [])
        _stop(target)


def test_certificates_and_headers_are_those_of_the_settings(exporter: str, tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    settings = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.authority),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(files.client_cert),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(files.client_key),
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=sesame",
    }
    collector = Receiver(cert=files.cert, key=files.key, client_ca=files.authority)
    with collector as receiver, _service(receiver.url, exporter, **settings) as target:
        assert receiver.exports(1)[0]["headers"]["x-token"] == "sesame"
        _stop(target)
