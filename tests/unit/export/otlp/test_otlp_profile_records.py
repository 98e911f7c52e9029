"""The log record of a profile, decoded with OpenTelemetry's messages and the official schema."""

from __future__ import annotations

import base64
import gzip
from dataclasses import replace
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource
from profile_factory import large_profile, small_profile
from profile_schema import decode

from splunk_profiler.export.otlp.profile_records import ProfileEncoder
from splunk_profiler.samples import InstrumentationSource, Profile

RESOURCE = Resource({"service.name": "shop"})


def records(*profiles: Profile) -> list[Any]:
    message = ProfileEncoder(lambda: RESOURCE, time_ns=lambda: 99).encode(profiles)
    (group,) = ExportLogsServiceRequest.FromString(message).resource_logs
    (part,) = group.scope_logs
    assert (part.scope.name, part.scope.version) == ("otel.profiling", "0.1.0")
    assert [(pair.key, pair.value.string_value) for pair in group.resource.attributes] == [("service.name", "shop")]
    return list(part.log_records)


def message(record: Any) -> Any:
    return decode(gzip.decompress(base64.b64decode(record.body.string_value, validate=True)))


def test_a_profile_is_one_record_with_the_attributes_of_the_convention() -> None:
    profile = small_profile()
    (record,) = records(profile)
    values = {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in record.attributes}
    assert values == {
        "com.splunk.sourcetype": "otel.profiling",
        "profiling.data.type": "cpu",
        "profiling.data.format": "pprof-gzip-base64",
        "profiling.data.total.frame.count": sum(len(one.stack.frames) for one in profile.aggregates),
        "profiling.instrumentation.source": "continuous",
    }
    assert record.event_name == "otel.profiling"
    assert (record.time_unix_nano, record.observed_time_unix_nano) == (profile.time_ns, 99)
    assert (record.trace_id, record.span_id) == (b"", b"")
    assert message(record).time_nanos == profile.time_ns


def test_profiles_of_both_profilers_are_distinguishable() -> None:
    found = records(small_profile(), replace(small_profile(), source=InstrumentationSource.SNAPSHOT))
    sources = [
        pair.value.string_value
        for record in found
        for pair in record.attributes
        if pair.key == "profiling.instrumentation.source"
    ]
    assert sources == ["continuous", "snapshot"]


def test_a_profile_that_began_before_the_epoch_is_sent_as_of_then() -> None:
    (record,) = records(replace(small_profile(), time_ns=-3_000_000_000))  # of an unset clock
    assert record.time_unix_nano == 0
    assert message(record).time_nanos == -3_000_000_000


def test_each_profile_of_a_batch_is_a_record_of_its_own() -> None:
    found = records(small_profile(), large_profile(3))
    assert [len(message(record).sample) for record in found] == [len(small_profile().aggregates), 3]


def test_profile_too_large_for_a_body_is_several_records_with_all_samples() -> None:
    profile = large_profile(20_000)
    found = records(profile)
    assert len(found) > 1
    assert all(len(record.body.string_value) <= 1 << 20 for record in found)
    assert sum(len(message(record).sample) for record in found) == 20_000
    counts = [pair.value.int_value for one in found for pair in one.attributes if pair.key.endswith("frame.count")]
    assert sum(counts) == sum(len(one.stack.frames) for one in profile.aggregates)
