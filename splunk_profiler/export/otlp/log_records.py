"""The parts of an ``ExportLogsServiceRequest`` that all log records share, without the SDK's log records.

Runs on the exporting thread; loads OpenTelemetry's protobuf messages, not the SDK. Specification:
Splunk profiling conventions, "ResourceLogs" to "LogRecord Fields".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from splunk_profiler.export.sink_context import Resource
from splunk_profiler.formats.wire import field, tag, varint
from splunk_profiler.model import DataType

_NAME = "otel.profiling"
_SCOPE_VERSION = "0.1.0"  # a constant of the conventions, not the version of this package
SOURCE_ATTRIBUTE = "profiling.instrumentation.source"
DATA_TYPE_ATTRIBUTE = "profiling.data.type"
_MAX_INT64 = 2**63 - 1

# Parts of messages on the wire: records are joined of them, since message objects cost several times that.
_RESOURCE_LOGS, _SCOPE_LOGS = b"\x0a", b"\x12"  # of ExportLogsServiceRequest, of ResourceLogs
_RECORD = b"\x12"  # of ScopeLogs
_TIME_TAG, _OBSERVED_TIME_TAG = 0x09, 0x59  # of LogRecord
_BODY, _EVENT_NAME = b"\x2a", field(tag(12), _NAME.encode())  # of LogRecord; older versions of its class lack the name
_STRING_VALUE = b"\x0a"  # of AnyValue
_TIME = Struct("<BQ")


class RequestBuilder:
    """A builder of requests; calls `resource`, the process's, for each."""

    def __init__(self, resource: Callable[[], Resource]) -> None:
        self._resource = resource
        self._encoded_resource: tuple[Resource, bytes, bytes] | None = None

    def build(self, records: list[bytes]) -> bytes:
        """Return a request with a resource, a scope and the parts of `records`."""
        head, scope = self._encode_resource()
        size = len(scope) + sum(map(len, records))
        encoded_size = varint(size)
        whole_size = varint(len(head) + len(_SCOPE_LOGS) + len(encoded_size) + size)
        return b"".join([_RESOURCE_LOGS, whole_size, head, _SCOPE_LOGS, encoded_size, scope, *records])

    def _encode_resource(self) -> tuple[bytes, bytes]:
        """Encode resource and scope, once for each resource: it is immutable."""
        resource = self._resource()
        if self._encoded_resource is None or self._encoded_resource[0] is not resource:
            head = ResourceLogs(
                resource=ResourceMessage(attributes=attributes(resource.attributes)), schema_url=resource.schema_url
            )
            scope = ScopeLogs(scope=InstrumentationScope(name=_NAME, version=_SCOPE_VERSION))
            self._encoded_resource = (resource, head.SerializeToString(), scope.SerializeToString())
        return self._encoded_resource[1:]


def record_attributes(data_format: str, own: Mapping[str, Any]) -> bytes:
    """Encode the attributes that all records have and `own`, as the part of a record."""
    common = {
        "com.splunk.sourcetype": _NAME,
        DATA_TYPE_ATTRIBUTE: DataType.CPU.value,
        "profiling.data.format": data_format,
    }
    return bytes(LogRecord(attributes=attributes({**common, **own})).SerializeToString())


def encode_record(time_ns: int, body: tuple[bytes, ...], other_fields: bytes) -> tuple[bytes, ...]:
    """Encode a record, in parts of a request, with a text in UTF-8 as its body; `other_fields` has its other fields."""
    before, after = _encode_sizes(sum(map(len, body)), len(other_fields))
    time = _TIME.pack(_TIME_TAG, max(time_ns, 0))  # an unset clock may be before 1970
    return (before + time + after, *body, other_fields)


@lru_cache(maxsize=4096)
def _encode_sizes(text_bytes: int, other_bytes: int) -> tuple[bytes, bytes]:
    """Encode what stands before and after the time in the head of a record."""
    text = _STRING_VALUE + varint(text_bytes)
    value = _BODY + varint(len(text) + text_bytes) + text
    return _RECORD + varint(_TIME.size + len(value) + text_bytes + other_bytes), value


def encode_end(observed_ns: int) -> bytes:
    """Encode the fields that all records of a request have last."""
    return _TIME.pack(_OBSERVED_TIME_TAG, max(observed_ns, 0)) + _EVENT_NAME


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Convert attributes to messages, and values of unknown types to their text."""
    return [KeyValue(key=_escape_surrogates(key), value=_to_any_value(value)) for key, value in values.items()]


def _to_any_value(value: Any) -> AnyValue:  # noqa: PLR0911  # one of each kind
    if value is None:
        return AnyValue()
    if isinstance(value, str):  # a member of an enumeration is its value
        return AnyValue(string_value=_escape_surrogates(value))
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_MAX_INT64 <= value <= _MAX_INT64:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, Sequence):
        return AnyValue(array_value=ArrayValue(values=[_to_any_value(item) for item in value]))
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    return AnyValue(string_value=_escape_surrogates(str(value)))


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which stand for undecodable bytes of a file name."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
