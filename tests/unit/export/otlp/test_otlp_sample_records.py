"""The bytes of an export request, decoded with OpenTelemetry's messages."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.sdk.resources import Resource
from sample_factory import make_sample

from splunk_profiler.export.otlp.sample_records import SampleEncoder
from splunk_profiler.formats.text import BodyFormatter
from splunk_profiler.model import SpanRef
from splunk_profiler.samples import InstrumentationSource, Sample

RESOURCE = Resource({"service.name": "shop"}, "https://opentelemetry.io/schemas/1.30.0")


def encode(*samples: Sample, resource: Resource = RESOURCE) -> Any:
    encoder = SampleEncoder(lambda: resource, BodyFormatter().parts, time_ns=lambda: 99)
    return ExportLogsServiceRequest.FromString(encoder.encode(samples))


def only_record(*samples: Sample) -> Any:
    (group,) = encode(*samples).resource_logs
    (part,) = group.scope_logs
    (record,) = part.log_records
    return record


def plain(pairs: list[KeyValue]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


def test_resource_and_scope_are_as_the_convention_says() -> None:
    (group,) = encode(make_sample(1), make_sample(2)).resource_logs
    (part,) = group.scope_logs
    assert plain(group.resource.attributes) == {"service.name": "shop"}
    assert group.schema_url == "https://opentelemetry.io/schemas/1.30.0"
    assert (part.scope.name, part.scope.version) == ("otel.profiling", "0.1.0")
    assert [record.time_unix_nano for record in part.log_records] == [1_000_000_000, 2_000_000_000]


def test_request_is_as_long_as_protobuf_would_make_it() -> None:
    samples = (make_sample(1, span=SpanRef(1, 2, 1)), make_sample(2, frames=300), make_sample(3, truncated=True))
    encoded = SampleEncoder(lambda: RESOURCE, BodyFormatter().parts, time_ns=lambda: 99).encode(samples)
    assert len(encoded) == ExportLogsServiceRequest.FromString(encoded).ByteSize()


def test_a_record_of_a_clock_before_the_epoch_is_sent_as_of_then() -> None:
    encoded = SampleEncoder(lambda: RESOURCE, BodyFormatter().parts, time_ns=lambda: -1).encode([make_sample(-5)])
    (record,) = ExportLogsServiceRequest.FromString(encoded).resource_logs[0].scope_logs[0].log_records
    assert (record.time_unix_nano, record.observed_time_unix_nano) == (0, 0)


def test_a_record_outside_a_span_has_every_field_but_ids() -> None:
    sample = make_sample(5, period_ns=250_000_000)
    record = only_record(sample)
    assert record.event_name == "otel.profiling"
    assert (record.time_unix_nano, record.observed_time_unix_nano) == (5_000_000_000, 99)
    assert (record.trace_id, record.span_id, record.flags) == (b"", b"", 0)
    assert record.body.string_value == b"".join(BodyFormatter().parts(sample)).decode()
    assert plain(record.attributes) == {
        "com.splunk.sourcetype": "otel.profiling",
        "profiling.data.type": "cpu",
        "profiling.data.format": "text",
        "source.event.period": 250,
    }


def test_ids_keep_their_leading_zeros_and_flags_travel() -> None:
    record = only_record(make_sample(span=SpanRef(trace_id=0xAB, span_id=0xCD, trace_flags=0)))
    assert record.trace_id.hex() == "000000000000000000000000000000ab"
    assert record.span_id.hex() == "00000000000000cd"
    assert record.flags == 0
    assert only_record(make_sample(span=SpanRef(2**128 - 1, 2**64 - 1, 3))).flags == 3


def test_only_a_stack_that_was_cut_says_so() -> None:
    assert plain(only_record(make_sample(truncated=True)).attributes)["thread.stack.truncated"] is True
    assert "thread.stack.truncated" not in plain(only_record(make_sample(truncated=False)).attributes)


def test_only_a_sample_of_a_snapshot_profile_says_so() -> None:
    samples = make_sample(), make_sample()._replace(source=InstrumentationSource.SNAPSHOT)
    sources = [plain(only_record(sample).attributes).get("profiling.instrumentation.source") for sample in samples]
    assert sources == [None, "snapshot"]


def test_a_period_below_a_millisecond_is_sent_as_one() -> None:
    assert plain(only_record(make_sample(period_ns=10)).attributes)["source.event.period"] == 1


def test_text_that_utf8_cannot_carry_is_written_out() -> None:
    record = only_record(make_sample(function="caf\udce9"))
    assert "caf\\udce9" in record.body.string_value


class Environment(str, Enum):
    LIVE = "live"


@pytest.mark.parametrize(
    ("value", "kind", "sent"),
    [
        (True, "bool_value", True),
        (7, "int_value", 7),
        (2**70, "string_value", str(2**70)),
        (0.5, "double_value", 0.5),
        ("\udce9", "string_value", "\\udce9"),
        (b"\x00", "bytes_value", b"\x00"),
        (Environment.LIVE, "string_value", "live"),
    ],
)
def test_every_kind_of_resource_attribute_is_encoded(value: Any, kind: str, sent: Any) -> None:
    resource = SimpleNamespace(attributes={"key": value}, schema_url="")
    request = ExportLogsServiceRequest.FromString(
        SampleEncoder(lambda: resource, BodyFormatter().parts).encode([make_sample()])
    )
    (pair,) = request.resource_logs[0].resource.attributes
    assert pair.value.WhichOneof("value") == kind
    assert getattr(pair.value, kind) == sent


def test_a_sequence_is_encoded_as_an_array() -> None:
    request = encode(make_sample(), resource=Resource({"process.command_args": ("python", "app.py")}))
    (pair,) = request.resource_logs[0].resource.attributes
    assert [value.string_value for value in pair.value.array_value.values] == ["python", "app.py"]


def test_a_mapping_is_encoded_as_a_list_of_pairs() -> None:
    resource: Any = SimpleNamespace(attributes={"owner": {"team": "shop", "level": 2}}, schema_url="")
    (pair,) = encode(make_sample(), resource=resource).resource_logs[0].resource.attributes
    assert plain(pair.value.kvlist_value.values) == {"team": "shop", "level": 2}


def test_a_resource_that_was_replaced_is_encoded_anew() -> None:
    resources = [Resource({"service.name": "a"}), Resource({"service.name": "b"})]
    encoder = SampleEncoder(lambda: resources[0], BodyFormatter().parts)
    encoder.encode([make_sample()])
    del resources[0]
    request = ExportLogsServiceRequest.FromString(encoder.encode([make_sample()]))
    assert plain(request.resource_logs[0].resource.attributes) == {"service.name": "b"}
