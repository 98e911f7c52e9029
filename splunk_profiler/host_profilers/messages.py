"""What host profilers send, decoded: one datagram in, one value out.

Pure, and total: any bytes get an answer, none an exception. Must not import anything of ours.

Specification: Elastic universal profiling integration, "Message Format", "Profiler Registration Message" and "CPU
Profiler Trace Correlation Message". Numbers have the byte order of the machine, as all that is shared with profilers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("=HH")
_CORRELATION = struct.Struct("=24s16sH")
_DELAY = struct.Struct("=I")
_LENGTH = struct.Struct("=I")
_CORRELATION_TYPE = 1
_REGISTRATION_TYPE = 2
_HEADER_BYTES = _HEADER.size
_CORRELATION_BYTES = _HEADER_BYTES + _CORRELATION.size
_DELAY_END = _HEADER_BYTES + _DELAY.size
_HOST_ID_START = _DELAY_END + _LENGTH.size


class ProfilerRegistration(NamedTuple):
    """A profiler says that it is there.

    Attributes:
        samples_delay_ms: within which it reports a sample, usually.
        host_id: empty if it says none.
    """

    samples_delay_ms: int
    host_id: str


class TraceCorrelation(NamedTuple):
    """A stack was seen in a transaction.

    Attributes:
        transaction: trace id and transaction id as one number of 192 bits (`annotation.transaction_key`).
        stack_trace_id: 16 bytes.
        times: how often since the last report, 0 to 65,535.
    """

    transaction: int
    stack_trace_id: bytes
    times: int


class UnknownMessage(NamedTuple):
    """A message of a type that is not known here: of a newer profiler."""

    message_type: int


class MalformedMessage(NamedTuple):
    """Not a message, or one of which an end is missing.

    Attributes:
        reason: in words, the same for all of a kind.
    """

    reason: str


Message = ProfilerRegistration | TraceCorrelation | UnknownMessage | MalformedMessage

_SHORT_HEADER = MalformedMessage("shorter than a message's head")
_SHORT_CORRELATION = MalformedMessage("a CPU profiler trace correlation message that is cut off")
_SHORT_REGISTRATION = MalformedMessage("a profiler registration message that is cut off")


def decode(datagram: bytes) -> Message:
    """The message in `datagram`.

    Of any minor version: new fields come at the end, and what follows the known ones is left alone.
    """
    if len(datagram) < _HEADER_BYTES:
        return _SHORT_HEADER
    message_type, _minor_version = _HEADER.unpack_from(datagram)
    if message_type == _CORRELATION_TYPE:
        if len(datagram) < _CORRELATION_BYTES:
            return _SHORT_CORRELATION
        transaction, stack_trace_id, times = _CORRELATION.unpack_from(datagram, _HEADER_BYTES)
        return TraceCorrelation(int.from_bytes(transaction, "big"), stack_trace_id, times)
    if message_type == _REGISTRATION_TYPE:
        return _decode_registration(datagram)
    return UnknownMessage(message_type)


def _decode_registration(datagram: bytes) -> ProfilerRegistration | MalformedMessage:
    if len(datagram) < _DELAY_END:
        return _SHORT_REGISTRATION
    (delay_ms,) = _DELAY.unpack_from(datagram, _HEADER_BYTES)
    if len(datagram) == _DELAY_END:
        return ProfilerRegistration(delay_ms, "")  # senders of the first minor version may have no host id
    if len(datagram) < _HOST_ID_START:
        return _SHORT_REGISTRATION
    (length,) = _LENGTH.unpack_from(datagram, _DELAY_END)
    if len(datagram) - _HOST_ID_START < length:
        return _SHORT_REGISTRATION
    host_id = datagram[_HOST_ID_START : _HOST_ID_START + length].decode("utf-8", "replace")
    return ProfilerRegistration(delay_ms, host_id)
