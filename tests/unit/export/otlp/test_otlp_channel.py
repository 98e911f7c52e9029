"""The private names of the OpenTelemetry SDK that `export` reads; one test for each.

If a test fails with a new SDK, nothing is lost at run time: each name has a fallback, and records
then travel on our own connection. Add the new name to `export/otlp/channel.py`, and keep the old
one while its version is within the range in ``pyproject.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import opentelemetry.context
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp import channel


@pytest.fixture
def exporter() -> Iterator[OTLPSpanExporter]:
    made = OTLPSpanExporter(endpoint="http://127.0.0.1:4317")
    yield made
    made.shutdown()


def test_the_exporter_of_each_span_processor_can_be_found(exporter: OTLPSpanExporter) -> None:
    for processor in (SimpleSpanProcessor(exporter), BatchSpanProcessor(exporter)):
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SpanProcessor())
        provider.add_span_processor(processor)
        assert exporter in list(channel.iter_span_exporters(provider))
        provider.shutdown()


class OddProcessor(SpanProcessor):
    """A processor of the application with an attribute of the name that the SDK's have."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    @property
    def _span_processors(self) -> object:
        return self._inner if self._inner != "itself" else (self,)


@pytest.mark.parametrize("inner", [None, 3, "itself"])
def test_an_odd_processor_leaves_us_our_own_connection(inner: object) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(OddProcessor(inner))
    endpoint = parse_endpoint("http://127.0.0.1:9")
    selector = channel.ConnectionSelector(endpoint, Transport(), lambda: provider)
    assert not selector.choose_connection(may_share=True).is_shared
    selector.close()


def test_a_provider_without_processors_has_no_exporter() -> None:
    assert list(channel.iter_span_exporters(None)) == []
    assert list(channel.iter_span_exporters(object())) == []
    assert list(channel.iter_span_exporters(trace.NoOpTracerProvider())) == []


def test_a_trace_exporter_says_where_it_sends_and_how(exporter: OTLPSpanExporter) -> None:
    private = vars(exporter)
    assert private["_endpoint"] == "127.0.0.1:4317"
    assert isinstance(private["_channel"], grpc.Channel)


def test_a_trace_exporter_says_whether_it_uses_tls(exporter: OTLPSpanExporter) -> None:
    assert channel.uses_tls(exporter) is False
    secure = OTLPSpanExporter(endpoint="https://127.0.0.1:4317")
    assert channel.uses_tls(secure) is True
    secure.shutdown()


def test_a_trace_exporter_says_that_it_is_shut_down(exporter: OTLPSpanExporter) -> None:
    assert vars(exporter)["_shutdown"] is False
    exporter.shutdown()
    assert vars(exporter)["_shutdown"] is True


def test_the_module_of_the_trace_exporter_is_where_it_is_looked_for() -> None:
    assert OTLPSpanExporter.__module__ == channel.TRACE_EXPORTER


def test_the_method_of_an_export_is_that_of_the_service() -> None:
    service = logs_service_pb2.DESCRIPTOR.services_by_name["LogsService"]
    assert f"/{service.full_name}/Export" == channel.EXPORT_METHOD


def test_the_key_that_keeps_instrumentation_away_exists() -> None:
    assert isinstance(opentelemetry.context._SUPPRESS_INSTRUMENTATION_KEY, str)


def test_global_tracer_provider_is_readable_without_making_one() -> None:
    assert hasattr(trace, "_TRACER_PROVIDER")


def test_records_can_carry_an_event_name() -> None:
    assert "event_name" in LogRecord.DESCRIPTOR.fields_by_name
