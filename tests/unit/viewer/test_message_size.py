"""Tests of counting the items of a message: they are as many as the parser finds, for any bytes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.viewer.message_size import count_items, fields_of

LOGS = fields_of(ExportLogsServiceRequest.DESCRIPTOR)


def counted(message: Any) -> int:
    """Count the messages and repeated strings in a parsed message."""
    found = 0
    for field, value in message.ListFields():
        for each in value if field.default_value == [] else (value,):
            inner = field.message_type is not None
            found += inner or (field.default_value == [] and isinstance(each, (str, bytes)))
            found += counted(each) if inner else 0
    return found


def holds(message: bytes, fields: Any = LOGS) -> int:
    """Return the number of items, which is the same for all limits that are not exceeded."""
    found = count_items(message, fields, 1 << 20)
    for most in range(found):
        assert count_items(message, fields, most) == most + 1
    return found


def logs(records: int, attributes: int) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.entity_refs.add(id_keys=["", "a", ""])
    scope = resource.scope_logs.add()
    scope.scope.name = "x" * 300
    for number in range(records):
        record = scope.log_records.add(time_unix_nano=1 << 63, severity_text="", trace_id=bytes(16))
        record.body.kvlist_value.values.add(key="k").value.array_value.values.add().double_value = 1.5
        for _ in range(attributes):
            record.attributes.add(key="k").value.int_value = -number
    return request


@pytest.mark.parametrize("records", [0, 1, 7])
def test_all_that_a_request_holds_is_counted_at_all_depths(records: int) -> None:
    request = logs(records, 3)
    assert holds(request.SerializeToString()) == counted(request)


def test_spans_with_events_and_links_are_counted() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="x")
    span.events.add(name="e").attributes.add(key="k")
    span.links.add(trace_state="t")
    found = holds(request.SerializeToString(), fields_of(ExportTraceServiceRequest.DESCRIPTOR))
    assert found == counted(request) == 6


def test_texts_that_are_not_repeated_are_no_items() -> None:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().schema_url = "x" * 1000
    assert holds(request.SerializeToString()) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_repeated_numbers_are_no_items(packed: bool) -> None:
    message = 3 * b"\x12\x04\x0a\x02\x01\x01" if packed else 3 * b"\x12\x04\x08\x01\x08\x01"
    assert len(ProfileMessage.FromString(message).sample[2].location_id) == 2
    assert holds(message, fields_of(ProfileMessage.DESCRIPTOR)) == 3


@pytest.mark.parametrize("number", [b"\x48\x01", b"\x0b\x0c", b"\x4d\x00\x00\x00\x00"])
def test_a_message_of_numbers_is_not_read_to_its_end(number: bytes) -> None:
    message = 100 * number + b"\x0a\x00"
    assert count_items(message, LOGS, 100) == 1
    assert count_items(message, LOGS, 9) == 10, "as one of too many items"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_raise_nothing(message: bytes) -> None:
    count_items(message, LOGS, 0)


@given(st.lists(st.sampled_from([b"\x0a\x00", b"\x0a\x02\x12\x00", b"\x10\x01", b"\x0b", b"\x0c", b"\x1a\x01"])))
def test_no_bytes_hold_more_when_they_are_parsed(pieces: list[bytes]) -> None:
    message = b"".join(pieces)
    try:
        request = ExportLogsServiceRequest.FromString(message)
    except DecodeError:
        return
    assert holds(message) >= counted(request)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 100_000,  # a number without an end
        b"\x0a" + b"\xff" * 9 + b"\x01",  # a length beyond the end
        b"\x0a\x05\x12\x7f\x00\x00\x00",  # an inner message that reaches beyond its outer one
        b"\x0f",
        b"\x0a",
    ],
)
def test_malformed_bytes_are_left_to_the_parser(message: bytes) -> None:
    assert count_items(message, LOGS, 1) <= 1
    with pytest.raises(DecodeError):
        ExportLogsServiceRequest.FromString(message)
