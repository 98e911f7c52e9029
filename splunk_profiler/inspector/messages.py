"""The messages that a host profiler sends to a process, as bytes.

Pure. Written from the specification alone ("Messaging Socket", "Message Format"), so that a mistake of whoever reads
messages cannot be made a second time here. Must not import anything of the package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_CORRELATION_TYPE, _CORRELATION_MINOR = 1, 1
_REGISTRATION_TYPE = 2

# All in the byte order of the machine, packed.
_CORRELATION = struct.Struct("=HH16s8s16sH")
_REGISTRATION = struct.Struct("=HHI")
_LENGTH = struct.Struct("=I")

MAX_COUNT = 0xFFFF
"""The largest count that fits into one message."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a host profiler says of itself ("Profiler Registration Message").

    Attributes:
        samples_delay_ms: how many milliseconds after a sample was taken its message has arrived, as a rule.
        host_id: the ``host.id`` of this machine; None leaves the field out, empty text sends it empty.
        minor_version: of the message; the specification says 2, real senders say 1.
    """

    samples_delay_ms: int
    host_id: str | None = None
    minor_version: int = 1


def encode_registration(registration: Registration) -> bytes:
    """The registration message."""
    data = _REGISTRATION.pack(_REGISTRATION_TYPE, registration.minor_version, registration.samples_delay_ms)
    if registration.host_id is None:
        return data
    text = registration.host_id.encode()
    return data + _LENGTH.pack(len(text)) + text


def encode_correlation(trace_id: str, transaction_id: str, stack_trace_id: str, count: int) -> bytes:
    """One stack trace of one transaction, sampled `count` times ("CPU Profiler Trace Correlation Message").

    Args:
        trace_id: 32 hexadecimal digits.
        transaction_id: 16 hexadecimal digits.
        stack_trace_id: 32 hexadecimal digits.
        count: 1 to `MAX_COUNT`.
    """
    return _CORRELATION.pack(
        _CORRELATION_TYPE,
        _CORRELATION_MINOR,
        bytes.fromhex(trace_id),
        bytes.fromhex(transaction_id),
        bytes.fromhex(stack_trace_id),
        count,
    )


def split_count(samples: int) -> Iterator[int]:
    """The counts of the messages that report `samples` samples: as few messages as can hold them."""
    while samples > 0:
        count = min(samples, MAX_COUNT)
        yield count
        samples -= count
