"""A second decoder of what host profilers send, and datagrams to try both with; shared by tests.

Written from the specification ("Message Format", "Profiler Registration Message", "CPU Profiler Trace Correlation
Message"), field by field, independently of the sources, so that it does not repeat their mistakes. `datagrams` makes
millions cheaply: one random number and a slice of a block of random bytes are all that most of them cost.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from splunk_profiler.host_profilers.messages import (
    MalformedMessage,
    Message,
    ProfilerRegistration,
    TraceCorrelation,
    UnknownMessage,
)

Fields = tuple[object, ...]

_BLOCK = 4096  # datagrams made of one block of randomness
_RANDOM_BYTES = 1 << 16
_LENGTH_MASK = 127
_MAX_SLICE_BYTES = 300  # bytes of the block for one datagram
_HOST_IDS = [b"", b"h", b"i-0abc", "knoten-ä-東京-🖥".encode(), b"\xff\xfe", b"cut\xe6\x9d", b"nul\x00nul", b"x" * 2000]


def _number(part: bytes) -> int:
    return int.from_bytes(part, sys.byteorder)


def expected_fields(datagram: bytes) -> Fields:
    """Decode `datagram` as the specification says."""
    if len(datagram) < 4:
        return ("discarded",)
    kind, payload = _number(datagram[0:2]), datagram[4:]
    if kind == 1:
        if len(payload) < 16 + 8 + 16 + 2:
            return ("discarded",)
        trace_id, transaction_id = payload[:16], payload[16:24]
        return ("stacks", trace_id.hex() + transaction_id.hex(), payload[24:40], _number(payload[40:42]))
    if kind == 2:
        return _registration(payload)
    return ("unknown", kind)


def _registration(payload: bytes) -> Fields:
    if len(payload) < 4:
        return ("discarded",)
    delay, rest = _number(payload[:4]), payload[4:]
    if not rest:
        return ("registration", delay, "")  # a sender that knows no host id
    size, text = _number(rest[:4]), rest[4:]
    if len(rest) < 4 or len(text) < size:
        return ("discarded",)
    return ("registration", delay, str(text[:size], "utf-8", "replace"))


def decoded_fields(message: Message) -> Fields:
    """Return a decoded message in the same form."""
    if isinstance(message, TraceCorrelation):
        return ("stacks", f"{message.transaction:048x}", message.stack_trace_id, message.times)
    if isinstance(message, ProfilerRegistration):
        return ("registration", message.samples_delay_ms, message.host_id)
    if isinstance(message, UnknownMessage):
        return ("unknown", message.message_type)
    assert isinstance(message, MalformedMessage)
    return ("discarded",)


def datagrams(count: int, seed: int) -> Iterator[bytes]:
    """Make `count` datagrams from `seed`: random, right and damaged ones."""
    source = random.Random(seed)
    for start in range(0, count, _BLOCK):
        block = source.randbytes(_RANDOM_BYTES + _MAX_SLICE_BYTES)
        numbers = memoryview(source.randbytes(8 * _BLOCK)).cast("Q")
        for index in range(min(_BLOCK, count - start)):
            yield _datagram(numbers[index], block)


def _datagram(number: int, block: bytes) -> bytes:
    """Make a datagram from the bits of `number` and from `block`."""
    variant, length, at = number & 7, number >> 3 & _LENGTH_MASK, number >> 10 & 0xFFFF
    if variant == 0:
        return block[at : at + length]
    if variant == 1:  # a small number as its type
        return (number >> 26 & 3).to_bytes(2, sys.byteorder) + block[at : at + length]
    if variant <= 3:  # just long enough, or about that
        return _head(1, number) + block[at : at + 42 + ((number >> 26 & 7) - 4 if variant == 3 else 0)]
    start = _head(2, number) + block[at : at + 4]
    return start if variant == 4 else _with_host(start, variant, number, block[at : at + 8])


def _with_host(start: bytes, variant: int, number: int, more: bytes) -> bytes:
    """Make a registration with a host id, perhaps a damaged one."""
    host = _HOST_IDS[number >> 26 & 7]
    whole = start + len(host).to_bytes(4, sys.byteorder) + host
    damage = number >> 31 & 0xFF
    if variant == 5:
        return whole + more[: damage & 3]
    if variant == 6:  # cut off, or with more than it says
        return (whole + more)[: damage % (len(whole) + 9)]
    place = damage % len(whole)  # one byte, be it of the head, the length or the text
    return whole[:place] + bytes([number >> 39 & 0xFF]) + whole[place + 1 :]


def _head(kind: int, number: int) -> bytes:
    minor = number >> 48 if number >> 47 & 1 else number >> 48 & 3
    return kind.to_bytes(2, sys.byteorder) + minor.to_bytes(2, sys.byteorder)
