"""The wire format of protobuf, as protobuf's own runtime writes it."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, FloatValue, Int64Value, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.formats.wire import field, number, numbers, read_message, tag, varint


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


@given(st.integers(1, 2**63 - 1), st.integers(1, 2**31 - 1))
def test_numbers_are_as_protobuf_writes_them(seconds: int, nanos: int) -> None:
    assert numbers(seconds, nanos) == Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
    assert number(2, nanos) == Timestamp(nanos=nanos).SerializeToString()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_numbers_that_protobuf_wrote_are_read(seconds: int, nanos: int) -> None:
    values, contents = read_message(Timestamp(seconds=seconds, nanos=nanos).SerializeToString())
    assert (values.get(1, 0), values.get(2, 0), contents) == (seconds, nanos, {})


@given(st.binary(min_size=1, max_size=300))
def test_bytes_that_protobuf_wrote_are_read(content: bytes) -> None:
    assert read_message(BytesValue(value=content).SerializeToString()) == ({}, {1: content})


def test_the_last_value_of_a_field_is_read_and_unknown_kinds_are_passed() -> None:
    unknown = DoubleValue(value=1.5).SerializeToString() + FloatValue(value=1.5).SerializeToString()
    values, _ = read_message(number(3, 1) + unknown + number(3, 2))
    assert values == {3: 2}


@pytest.mark.parametrize(
    "message", [b"\x08", b"\x08\xff", b"\x08" + b"\xff" * 10 + b"\x01", b"\x0a\x02a", b"\x09a", b"\x0b", b"\x0f"]
)
def test_a_message_that_is_cut_or_none_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="has no end"):
        read_message(message)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_message(message)
