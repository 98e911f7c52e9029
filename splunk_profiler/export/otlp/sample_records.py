"""Samples → the bytes of an ``ExportLogsServiceRequest``, without the SDK's log records in between.

Runs on the exporting thread; loads OpenTelemetry's protobuf messages, not the SDK. What all records share is
made once and copied. Specification: Splunk profiling conventions, "ResourceLogs" to "LogRecord Fields".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from splunk_profiler.model import DataType, Sample, Source
from splunk_profiler.system.threads import let_others_run

_NAME = "otel.profiling"
_SCOPE_VERSION = "0.1.0"
SOURCE = "profiling.instrumentation.source"
DATA_TYPE = "profiling.data.type"
_MAX_INT64 = 2**63 - 1
_SLICE = 64  # records between two offers of the GIL


class Resource(Protocol):
    """The SDK's resource, as far as it is needed here."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Who sends."""

    @property
    def schema_url(self) -> str:
        """The conventions that the attributes follow."""


class Envelope:
    """What all records of a request have around them.

    Args:
        resource: the resource of the process, asked for with each request.
    """

    def __init__(self, resource: Callable[[], Resource]) -> None:
        self._resource = resource
        self._encoded: tuple[Resource, bytes] | None = None

    def request(self) -> tuple[ExportLogsServiceRequest, Callable[[], LogRecord]]:
        """A request, and a function that adds a record to it."""
        request = ExportLogsServiceRequest()
        group = request.resource_logs.add()
        group.MergeFromString(self._head())
        return request, group.scope_logs[0].log_records.add

    def _head(self) -> bytes:
        """Resource and scope; a resource is immutable and has to be encoded once only."""
        resource = self._resource()
        if self._encoded is None or self._encoded[0] is not resource:
            head = ResourceLogs(
                resource=ResourceMessage(attributes=attributes(resource.attributes)), schema_url=resource.schema_url
            )
            head.scope_logs.add(scope=InstrumentationScope(name=_NAME, version=_SCOPE_VERSION))
            self._encoded = (resource, bytes(head.SerializeToString()))
        return self._encoded[1]


class Encoder:
    """Encodes samples; keeps what was encoded once.

    Args:
        resource: the resource of the process, asked for with each batch.
        body: a sample's text.
        time_ns: the time of day, for when a record was handed over.
    """

    def __init__(
        self,
        resource: Callable[[], Resource],
        body: Callable[[Sample], str],
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._envelope = Envelope(resource)
        self._body = body
        self._time_ns = time_ns
        self._templates: dict[tuple[int, bool, Source], LogRecord] = {}

    def encode(self, samples: Iterable[Sample]) -> bytes:
        """One request with a record for each of `samples`, in their order."""
        request, add = self._envelope.request()
        observed_ns = self._time_ns()
        for number, sample in enumerate(samples, 1):
            if number % _SLICE == 0:
                let_others_run()
            record = add()
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
                record.body.string_value = _sendable(text)
        message: bytes = request.SerializeToString()
        return message

    def _template(self, sample: Sample) -> LogRecord:
        key = (sample.period_ns, sample.thread.stack.truncated, sample.source)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = _template(*key)
        return template


def _template(period_ns: int, truncated: bool, source: Source) -> LogRecord:
    found: dict[str, Any] = {"source.event.period": max(period_ns // 1_000_000, 1)}
    if truncated:
        found["thread.stack.truncated"] = True
    if source is not Source.CONTINUOUS:
        found[SOURCE] = source.value
    return record_template("text", found)


def record_template(data_format: str, more: Mapping[str, Any]) -> LogRecord:
    """A record with the attributes that profiles in this format have, and with `more`, which goes before them."""
    of_profiles = {
        "com.splunk.sourcetype": _NAME,
        DATA_TYPE: DataType.CPU.value,
        "profiling.data.format": data_format,
    }
    record = LogRecord(attributes=attributes({**of_profiles, **more}))
    if "event_name" in LogRecord.DESCRIPTOR.fields_by_name:  # its predecessor `name` is a reserved number
        record.event_name = _NAME
    return record


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Attributes as messages; values of types that OpenTelemetry does not know are sent as their text."""
    return [KeyValue(key=_sendable(key), value=_value(value)) for key, value in values.items()]


def _value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_MAX_INT64 <= value <= _MAX_INT64:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    return AnyValue() if value is None else AnyValue(string_value=_sendable(str(value)))


def _sendable(text: str) -> str:
    """`text` with what UTF-8 cannot carry (lone surrogates: undecodable bytes of a file name) written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
