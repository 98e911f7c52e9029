"""Decoding of host profilers' messages: one datagram in, one value out.

Pure and total: any bytes give a value, none an exception. Must not import anything of ours. Numbers
have the machine's byte order.

Specification: Elastic universal profiling integration, "Message Format", "Profiler Registration
Message" and "CPU Profiler Trace Correlation Message".
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
_DELAY_END = _HEADER.size + _DELAY.size
_HOST_ID_START = _DELAY_END + _LENGTH.size


class ProfilerRegistration(NamedTuple):
    """The registration of a profiler: its usual delay of reports, and a host id, which may be empty."""

    samples_delay_ms: int
    host_id: str


class TraceCorrelation(NamedTuple):
    """Samples of one stack in a transaction.

    Attributes:
        transaction: trace id and transaction id as one number of 192 bits (`annotation.transaction_key`).
        stack_trace_id: 16 bytes.
        times: number of samples since the last report, 0 to 65,535.
    """

    transaction: int
    stack_trace_id: bytes
    times: int


class UnknownMessage(NamedTuple):
    """A message of an unknown type, from a newer profiler."""

    message_type: int


class MalformedMessage(NamedTuple):
    """A datagram that is no message, or a message without its end; `reason` is the same for all of a kind."""

    reason: str


Message = ProfilerRegistration | TraceCorrelation | UnknownMessage | MalformedMessage

_SHORT_HEADER = MalformedMessage("shorter than a message's head")
_SHORT_CORRELATION = MalformedMessage("a CPU profiler trace correlation message that is cut off")
_SHORT_REGISTRATION = MalformedMessage("a profiler registration message that is cut off")


def decode(datagram: bytes) -> Message:
    """Return the message in `datagram`, of any minor version: new fields come last and are ignored."""
    if len(datagram) < _HEADER.size:
        return _SHORT_HEADER
    message_type, _minor_version = _HEADER.unpack_from(datagram)
    if message_type == _CORRELATION_TYPE:
        if len(datagram) < _HEADER.size + _CORRELATION.size:
            return _SHORT_CORRELATION
        transaction, stack_trace_id, times = _CORRELATION.unpack_from(datagram, _HEADER.size)
        return TraceCorrelation(int.from_bytes(transaction, "big"), stack_trace_id, times)
    if message_type == _REGISTRATION_TYPE:
        return _decode_registration(datagram)
    return UnknownMessage(message_type)


def _decode_registration(datagram: bytes) -> ProfilerRegistration | MalformedMessage:
    if len(datagram) < _DELAY_END:
        return _SHORT_REGISTRATION
    (delay_ms,) = _DELAY.unpack_from(datagram, _HEADER.size)
    if len(datagram) == _DELAY_END:
        return ProfilerRegistration(delay_ms, "")  # senders of the first minor version may have no host id
    if len(datagram) < _HOST_ID_START:
        return _SHORT_REGISTRATION
    (length,) = _LENGTH.unpack_from(datagram, _DELAY_END)
    host_id = datagram[_HOST_ID_START : _HOST_ID_START + length]
    if len(host_id) < length:
        return _SHORT_REGISTRATION
    return ProfilerRegistration(delay_ms, host_id.decode("utf-8", "replace"))
