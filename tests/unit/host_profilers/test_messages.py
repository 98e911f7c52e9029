"""Tests of the message decoder: each field, each length, and any bytes."""

from __future__ import annotations

import struct
import sys
from collections import Counter

import pytest
from message_oracle import datagrams, decoded_fields, expected_fields

from splunk_profiler.host_profilers.messages import (
    MalformedMessage,
    Message,
    ProfilerRegistration,
    TraceCorrelation,
    UnknownMessage,
    decode,
)

TRACE_ID = bytes(range(0x10, 0x20))
TRANSACTION_ID = bytes(range(0xA0, 0xA8))
STACK_TRACE_ID = bytes(range(0x60, 0x70))
MINOR_VERSIONS = pytest.mark.parametrize("minor", [0, 1, 2, 3, 65535])
_FUZZED = 20_000


def stack_traces(count: int = 1, minor: int = 1) -> bytes:
    """Return a CPU profiler trace correlation message."""
    return struct.pack("=HH16s8s16sH", 1, minor, TRACE_ID, TRANSACTION_ID, STACK_TRACE_ID, count)


def registration(delay_ms: int = 100, host_id: bytes = b"host", minor: int = 2) -> bytes:
    """Return a profiler registration message."""
    return struct.pack("=HHII", 2, minor, delay_ms, len(host_id)) + host_id


def is_malformed(message: Message) -> bool:
    return isinstance(message, MalformedMessage)


def test_correlation_message_is_a_transaction_a_stack_and_a_count() -> None:
    transaction = int.from_bytes(TRACE_ID + TRANSACTION_ID, "big")
    assert decode(stack_traces(3)) == TraceCorrelation(transaction, STACK_TRACE_ID, 3)
    assert len(stack_traces()) == 46


def test_ids_are_bytes_in_the_order_in_which_they_are_written_down() -> None:
    message = decode(stack_traces())
    assert isinstance(message, TraceCorrelation)
    assert f"{message.transaction:x}" == "101112131415161718191a1b1c1d1e1f" + "a0a1a2a3a4a5a6a7"


def test_numbers_have_the_byte_order_of_the_machine() -> None:
    order = sys.byteorder
    head = (1).to_bytes(2, order) + (1).to_bytes(2, order)
    body = TRACE_ID + TRANSACTION_ID + STACK_TRACE_ID
    message = decode(head + body + (0x0102).to_bytes(2, order))
    assert isinstance(message, TraceCorrelation)
    assert message.times == 0x0102
    said = (2).to_bytes(2, order) + (2).to_bytes(2, order) + (0x01020304).to_bytes(4, order) + (2).to_bytes(4, order)
    assert decode(said + b"ab") == ProfilerRegistration(0x01020304, "ab")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 32767, 32768, 65535])
def test_the_count_is_unsigned(count: int) -> None:
    message = decode(stack_traces(count))
    assert isinstance(message, TraceCorrelation)
    assert message.times == count


@pytest.mark.parametrize("delay_ms", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_delay_is_unsigned(delay_ms: int) -> None:
    assert decode(registration(delay_ms)) == ProfilerRegistration(delay_ms, "host")


@MINOR_VERSIONS
@pytest.mark.parametrize("more", [b"", b"\x00", b"new field", bytes(900)])
def test_messages_of_any_minor_version_are_read_up_to_the_known_fields(minor: int, more: bytes) -> None:
    assert decode(stack_traces(7, minor) + more) == decode(stack_traces(7))
    assert decode(registration(minor=minor) + more) == ProfilerRegistration(100, "host")


@MINOR_VERSIONS
def test_a_registration_may_end_after_the_delay(minor: int) -> None:
    assert decode(struct.pack("=HHI", 2, minor, 250)) == ProfilerRegistration(250, "")


@MINOR_VERSIONS
def test_an_empty_host_id_is_none(minor: int) -> None:
    assert decode(registration(250, b"", minor)) == ProfilerRegistration(250, "")


def test_a_host_id_may_be_in_any_script_and_have_any_length() -> None:
    for host_id in ("knoten-ä", "東京-1", "🖥", "nul\0nul", "x" * 1000):
        assert decode(registration(1, host_id.encode())) == ProfilerRegistration(1, host_id)


@pytest.mark.parametrize(
    ("raw", "shown"), [(b"a\xffb", "a\ufffdb"), ("東".encode()[:2], "\ufffd"), (b"\xed\xa0\x80", "\ufffd" * 3)]
)
def test_invalid_utf_8_in_a_host_id_is_replaced_for_exporters(raw: bytes, shown: str) -> None:
    message = decode(registration(1, raw))
    assert message == ProfilerRegistration(1, shown)
    assert shown.encode()


@pytest.mark.parametrize("length", range(46))
def test_a_correlation_message_that_is_cut_off_anywhere_is_discarded(length: int) -> None:
    assert is_malformed(decode(stack_traces()[:length]))


@pytest.mark.parametrize("length", range(len(registration())))
def test_registration_cut_off_anywhere_but_after_the_delay_is_discarded(length: int) -> None:
    assert is_malformed(decode(registration()[:length])) == (length != 8)


@pytest.mark.parametrize("length", [5, 2**16, 2**31, 2**32 - 1])
def test_a_host_id_that_claims_more_bytes_than_there_are_is_discarded(length: int) -> None:
    assert is_malformed(decode(struct.pack("=HHII4s", 2, 2, 100, length, b"host")))


def test_an_empty_datagram_and_half_a_head_are_discarded() -> None:
    assert {decode(bytes(length)) for length in range(4)} == {MalformedMessage("shorter than a message's head")}


@pytest.mark.parametrize("message_type", [0, 3, 255, 256, 512, 65535])
def test_unknown_types_are_recognised_whatever_their_content(message_type: int) -> None:
    for rest in (b"", bytes(42), stack_traces(), bytes(1000)):
        assert decode(struct.pack("=HH", message_type, 1) + rest) == UnknownMessage(message_type)


def test_reasons_for_discarding_are_few_so_that_they_can_be_counted() -> None:
    found = Counter(
        message.reason for message in map(decode, datagrams(20_000, 1)) if isinstance(message, MalformedMessage)
    )
    assert len(found) == 3


def test_random_and_damaged_datagrams_decode_as_in_a_second_decoder() -> None:
    kinds: Counter[object] = Counter()
    for datagram in datagrams(_FUZZED, 20261121):
        wanted = expected_fields(datagram)
        found = decoded_fields(decode(datagram))
        assert found == wanted, datagram.hex()
        kinds[wanted[0]] += 1
    assert all(kinds[kind] > _FUZZED / 100 for kind in ("discarded", "registration", "stacks", "unknown")), kinds
