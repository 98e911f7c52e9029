"""The profiler of an application that is not changed: under `opentelemetry-instrument`, through the entry point."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from receiver_process import Receiver
from target_process import TESTS, Target, profiling_settings

_INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
_INSTALLED = any(point.name == "splunk_profiler" for point in entry_points(group="opentelemetry_post_instrument"))
_SETTINGS = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    "OTEL_SERVICE_NAME": "unchanged",
}

pytestmark = [
    pytest.mark.skipif(not _INSTRUMENT.exists(), reason="opentelemetry-instrument is not there"),
    pytest.mark.skipif(not _INSTALLED, reason="the package is not installed, so it has no entry point"),
]


def test_opentelemetry_instrument_joins_samples_to_exported_spans() -> None:
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url), **_SETTINGS, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        with Target(str(_INSTRUMENT), sys.executable, str(TESTS / "targets" / "uninstrumented.py"), env=env) as target:
            target.line("ready")
            record = receiver.record(lambda record: ".work_in_span_07(" in record["body"])
            target.tell("stop")
            assert target.finish() == 0, target.output
        assert record["resource"]["service.name"] == "unchanged"
        (span,) = receiver.spans(1, lambda span: span["span_id"] == record["span_id"])
        assert (span["name"], span["trace_id"]) == ("span_07", record["trace_id"])


def test_opentelemetry_instrument_profiles_nothing_unless_enabled() -> None:
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url), **_SETTINGS, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        env["SPLUNK_PROFILER_ENABLED"] = ""
        with Target(str(_INSTRUMENT), sys.executable, str(TESTS / "targets" / "uninstrumented.py"), env=env) as target:
            target.line("ready")
            receiver.spans(1)
            maps = Path(f"/proc/{target.pid}/maps").read_text("utf-8")
            assert "_walker" not in maps
            target.tell("stop")
            assert target.finish() == 0, target.output
        assert receiver.records() == []
