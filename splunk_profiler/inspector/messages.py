"""Encoders of the messages that a host profiler sends to a process.

Written only from the specification ("Messaging Socket", "Message Format"). Shares no code with the
reader of messages, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_CORRELATION_TYPE, _CORRELATION_MINOR = 1, 1
_REGISTRATION_TYPE = 2

# Packed, in the byte order of the machine.
_CORRELATION = struct.Struct("=HH16s8s16sH")
_REGISTRATION = struct.Struct("=HHI")
_LENGTH = struct.Struct("=I")

MAX_COUNT = 0xFFFF
"""Largest count of a message."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of a "Profiler Registration Message".

    Attributes:
        samples_delay_ms: usual milliseconds from a sample to the arrival of its message.
        host_id: ``host.id`` of this machine; None omits the field, empty text sends it empty.
        minor_version: minor version of the message; the specification says 2, real senders say 1.
    """

    samples_delay_ms: int
    host_id: str | None = None
    minor_version: int = 1


def encode_registration(registration: Registration) -> bytes:
    """Encode a registration message."""
    data = _REGISTRATION.pack(_REGISTRATION_TYPE, registration.minor_version, registration.samples_delay_ms)
    if registration.host_id is None:
        return data
    text = registration.host_id.encode()
    return data + _LENGTH.pack(len(text)) + text


def encode_correlation(trace_id: str, transaction_id: str, stack_trace_id: str, count: int) -> bytes:
    """Encode a "CPU Profiler Trace Correlation Message" for a stack trace sampled `count` times.

    The ids have 32, 16 and 32 hexadecimal digits; the count is 1 to `MAX_COUNT`.
    """
    ids = (bytes.fromhex(digits) for digits in (trace_id, transaction_id, stack_trace_id))
    return _CORRELATION.pack(_CORRELATION_TYPE, _CORRELATION_MINOR, *ids, count)


def split_count(samples: int) -> list[int]:
    """Split `samples` into the counts of as few messages as possible."""
    full_messages, rest = divmod(samples, MAX_COUNT)
    return [MAX_COUNT] * full_messages + ([rest] if rest else [])
