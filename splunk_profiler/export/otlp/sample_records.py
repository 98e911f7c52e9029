"""Samples → the bytes of an ``ExportLogsServiceRequest``, without the SDK's log records.

Runs on the exporting thread; loads OpenTelemetry's protobuf messages, not the SDK. Specification:
Splunk profiling conventions, "ResourceLogs" to "LogRecord Fields".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from splunk_profiler.export.otlp.log_records import (
    DATA_TYPE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    RequestBuilder,
    encode_end,
    encode_record,
    record_attributes,
)
from splunk_profiler.export.sink_context import Resource
from splunk_profiler.formats.pauses import iter_with_pauses
from splunk_profiler.model import Event, SpanRef
from splunk_profiler.samples import InstrumentationSource, Sample
from splunk_profiler.system.gil import yield_gil

_FLAGS_TAG, _TRACE_ID_TAG, _SPAN_ID_TAG = 0x45, 0x4A, 0x52  # of LogRecord
_SPAN = Struct("<BIBB16sBB8s")


class SampleEncoder:
    """An encoder of samples, which caches the parts that records share; `body` returns those of a sample's text."""

    def __init__(
        self,
        resource: Callable[[], Resource],
        body: Callable[[Sample], tuple[bytes, ...]],
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._request_builder = RequestBuilder(resource)
        self._body = body
        self._time_ns = time_ns
        self._attributes: dict[tuple[int, bool, bool], bytes] = {}

    def encode(self, samples: Iterable[Sample]) -> bytes:
        """Encode one request with a record for each of `samples`, in their order."""
        end = encode_end(self._time_ns())
        records: list[bytes] = []
        for sample in iter_with_pauses(samples, yield_gil):
            span = b"" if sample.span is None else _encode_span(sample.span)
            other_fields = self._encode_attributes(sample) + span + end
            records += encode_record(sample.time_ns, self._body(sample), other_fields)
        return self._request_builder.build(records)

    def _encode_attributes(self, sample: Sample) -> bytes:
        if sample.event is not None:
            return _encode_event_attributes(sample, sample.event)
        is_continuous = sample.source is InstrumentationSource.CONTINUOUS
        key = (sample.period_ns, sample.thread.stack.truncated, is_continuous)  # an enum's hash is Python code
        encoded = self._attributes.get(key)
        if encoded is None:
            own: dict[str, Any] = {"source.event.period": max(sample.period_ns // 1_000_000, 1)}
            if sample.thread.stack.truncated:
                own["thread.stack.truncated"] = True
            if not is_continuous:
                own[SOURCE_ATTRIBUTE] = sample.source.value
            encoded = self._attributes[key] = record_attributes("text", own)
        return encoded


def _encode_event_attributes(sample: Sample, event: Event) -> bytes:
    own: dict[str, Any] = {
        DATA_TYPE_ATTRIBUTE: event.kind.data_type.value,
        "source.event.name": event.kind.name,
        "memory.allocated": event.amount,
    }
    if sample.thread.stack.truncated:
        own["thread.stack.truncated"] = True
    return record_attributes("text", own)


def _encode_span(span: SpanRef) -> bytes:
    trace_id, span_id = span.trace_id.to_bytes(16, "big"), span.span_id.to_bytes(8, "big")
    return _SPAN.pack(_FLAGS_TAG, span.trace_flags, _TRACE_ID_TAG, 16, trace_id, _SPAN_ID_TAG, 8, span_id)
