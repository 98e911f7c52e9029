"""The wire format of protobuf, as protobuf's own runtime writes it."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.formats.wire import field, tag, varint


@given(st.integers(1, 2**64 - 1))
def test_varint_of_an_unsigned_number_is_as_protobuf_writes_it(number: int) -> None:
    assert b"\x08" + varint(number) == UInt64Value(value=number).SerializeToString()


@given(st.integers(-(2**63), -1))
def test_varint_of_a_negative_number_is_as_protobuf_writes_it(number: int) -> None:
    assert b"\x08" + varint(number) == Int64Value(value=number).SerializeToString()


def test_varint_of_zero_is_one_byte() -> None:
    assert varint(0) == b"\0"


@given(st.binary(min_size=1, max_size=300))
def test_field_is_as_protobuf_writes_it(content: bytes) -> None:
    assert field(tag(1), content) == BytesValue(value=content).SerializeToString()
