"""Samples → the bytes of an ``ExportLogsServiceRequest``, without the SDK's log records.

Runs on the exporting thread; loads OpenTelemetry's protobuf messages, not the SDK. Specification:
Splunk profiling conventions, "ResourceLogs" to "LogRecord Fields".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from splunk_profiler.export.sink_context import Resource
from splunk_profiler.formats.pauses import iter_with_pauses
from splunk_profiler.model import DataType, InstrumentationSource, Sample
from splunk_profiler.system.threads import yield_gil

_NAME = "otel.profiling"
_SCOPE_VERSION = "0.1.0"  # a constant of the conventions, not the version of this package
SOURCE_ATTRIBUTE = "profiling.instrumentation.source"
DATA_TYPE_ATTRIBUTE = "profiling.data.type"
_MAX_INT64 = 2**63 - 1


class RequestBuilder:
    """A builder of requests without records; calls `resource`, the process's, for each."""

    def __init__(self, resource: Callable[[], Resource]) -> None:
        self._resource = resource
        self._encoded_resource: tuple[Resource, bytes] | None = None

    def build(self) -> ExportLogsServiceRequest:
        """Return a request with a resource and a scope."""
        request = ExportLogsServiceRequest()
        request.resource_logs.add().MergeFromString(self._encode_resource())
        return request

    def _encode_resource(self) -> bytes:
        """Encode resource and scope, once for each resource: it is immutable."""
        resource = self._resource()
        if self._encoded_resource is None or self._encoded_resource[0] is not resource:
            head = ResourceLogs(
                resource=ResourceMessage(attributes=attributes(resource.attributes)), schema_url=resource.schema_url
            )
            head.scope_logs.add(scope=InstrumentationScope(name=_NAME, version=_SCOPE_VERSION))
            self._encoded_resource = (resource, bytes(head.SerializeToString()))
        return self._encoded_resource[1]


class SampleEncoder:
    """An encoder of samples, which caches the parts that records share; `body` returns the text of a sample."""

    def __init__(
        self, resource: Callable[[], Resource], body: Callable[[Sample], str], time_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._request_builder = RequestBuilder(resource)
        self._body = body
        self._time_ns = time_ns
        self._templates: dict[tuple[int, bool, InstrumentationSource], LogRecord] = {}

    def encode(self, samples: Iterable[Sample]) -> bytes:
        """Encode one request with a record for each of `samples`, in their order."""
        request = self._request_builder.build()
        records = request.resource_logs[0].scope_logs[0].log_records
        observed_ns = self._time_ns()
        for sample in iter_with_pauses(samples, yield_gil):
            record = records.add()
            record.CopyFrom(self._template(sample))
            record.time_unix_nano = sample.time_ns
            record.observed_time_unix_nano = observed_ns
            if (span := sample.span) is not None:
                record.trace_id = span.trace_id.to_bytes(16, "big")
                record.span_id = span.span_id.to_bytes(8, "big")
                record.flags = span.trace_flags
            text = self._body(sample)
            try:
                record.body.string_value = text
            except UnicodeEncodeError:
                record.body.string_value = _escape_surrogates(text)
        message: bytes = request.SerializeToString()
        return message

    def _template(self, sample: Sample) -> LogRecord:
        key = (sample.period_ns, sample.thread.stack.truncated, sample.source)
        template = self._templates.get(key)
        if template is None:
            own: dict[str, Any] = {"source.event.period": max(sample.period_ns // 1_000_000, 1)}
            if sample.thread.stack.truncated:
                own["thread.stack.truncated"] = True
            if sample.source is not InstrumentationSource.CONTINUOUS:
                own[SOURCE_ATTRIBUTE] = sample.source.value
            template = self._templates[key] = record_template("text", own)
        return template


def record_template(data_format: str, extra_attributes: Mapping[str, Any]) -> LogRecord:
    """Return a record with the attributes that all records have, and `extra_attributes`."""
    common_attributes = {
        "com.splunk.sourcetype": _NAME,
        DATA_TYPE_ATTRIBUTE: DataType.CPU.value,
        "profiling.data.format": data_format,
    }
    record = LogRecord(attributes=attributes({**common_attributes, **extra_attributes}))
    if "event_name" in LogRecord.DESCRIPTOR.fields_by_name:  # older versions lack it
        record.event_name = _NAME
    return record


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Convert attributes to messages, and values of unknown types to their text."""
    return [KeyValue(key=_escape_surrogates(key), value=_to_any_value(value)) for key, value in values.items()]


def _to_any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_MAX_INT64 <= value <= _MAX_INT64:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return AnyValue(array_value=ArrayValue(values=[_to_any_value(item) for item in value]))
    return AnyValue() if value is None else AnyValue(string_value=_escape_surrogates(str(value)))


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which stand for undecodable bytes of a file name."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
