"""Profiles → the bytes of an ``ExportLogsServiceRequest``: a record each, or several.

Runs on the exporting thread; loads OpenTelemetry's protobuf messages, not the SDK. Specification:
Splunk profiling conventions, "ResourceLogs" to "LogRecord Fields", and the pprof attributes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from splunk_profiler.code_origin.classifier import CodeClassifier
from splunk_profiler.export.otlp.log_records import (
    DATA_TYPE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    RequestBuilder,
    attributes,
    encode_end,
    encode_record,
    record_attributes,
)
from splunk_profiler.export.sink_context import Resource
from splunk_profiler.formats import pprof
from splunk_profiler.model import DataType
from splunk_profiler.samples import InstrumentationSource, Profile
from splunk_profiler.system.gil import yield_gil

DATA_FORMAT = "pprof-gzip-base64"


class ProfileEncoder:
    """An encoder of profiles, which caches the parts that records share."""

    def __init__(
        self,
        resource: Callable[[], Resource],
        classifier: CodeClassifier | None = None,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._request_builder = RequestBuilder(resource)
        self._classifier = classifier or CodeClassifier()
        self._time_ns = time_ns
        self._attributes = {
            (source, data_type): record_attributes(
                DATA_FORMAT, {SOURCE_ATTRIBUTE: source.value, DATA_TYPE_ATTRIBUTE: data_type.value}
            )
            for source in InstrumentationSource
            for data_type in DataType
        }

    def encode(self, profiles: Iterable[Profile]) -> bytes:
        """Encode one request with the records of `profiles`, in their order."""
        end = encode_end(self._time_ns())
        origin_of = self._classifier.refresh(yield_gil)
        records: list[bytes] = []
        for profile in profiles:
            for part in pprof.parts(profile, pause=yield_gil, origin_of=origin_of):
                count = LogRecord(attributes=attributes({"profiling.data.total.frame.count": part.frame_count}))
                other_fields = self._attributes[profile.source, profile.data_type] + count.SerializeToString() + end
                records += encode_record(profile.time_ns, (pprof.body(part),), other_fields)
        return self._request_builder.build(records)
