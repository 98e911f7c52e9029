"""The sink and the description of each destination."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.resources import Resource

from splunk_profiler.config import from_env
from splunk_profiler.export.datadog.exporter import DatadogSink
from splunk_profiler.export.destinations import describe, make_sink
from splunk_profiler.export.files import DirectorySink
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.export.sink_context import SinkContext

OUTPUT = "SPLUNK_PROFILER_OUTPUT"


@pytest.mark.parametrize(
    ("env", "kind", "words"),
    [
        ({}, OtlpSink, "https://localhost:4317 (from default)"),
        ({OUTPUT: "otlp", "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://h:1"}, OtlpSink, "http://h:1 (from SPLUNK_PROFILER"),
        ({OUTPUT: "file:/var/lib/profiles"}, DirectorySink, f"files in /var/lib/profiles (from {OUTPUT})"),
        ({OUTPUT: "datadog:http://agent"}, DatadogSink, f"the Datadog agent at http://agent (from {OUTPUT})"),
    ],
)
def test_a_destination_has_its_sink_and_its_description(env: dict[str, str], kind: type, words: str) -> None:
    resolved = from_env(env)
    sink = make_sink(SinkContext(resolved, Resource.get_empty, None, share_connection=False))
    sink.shutdown()
    assert type(sink) is kind
    assert describe(resolved).startswith(words)


@pytest.mark.parametrize("output", ["file:/gone", "datadog:http://127.0.0.1:9"])
def test_where_no_collector_is_asked_for_grpc_is_not_loaded(output: str) -> None:
    code = (
        "import sys\n"
        "from splunk_profiler.config import from_env\n"
        "from splunk_profiler.export.destinations import make_sink\n"
        "from splunk_profiler.export.sink_context import SinkContext\n"
        f"make_sink(SinkContext(from_env({{'{OUTPUT}': '{output}'}}), dict, None, share_connection=False))\n"
        "print([name for name in ('grpc', 'opentelemetry.proto', 'opentelemetry.sdk') if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"
