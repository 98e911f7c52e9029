"""The messages that a host profiler sends to a process, and a sender that never blocks. Used by one thread.

Written only from the specification ("Messaging Socket", "Message Format"). Shares no code with the
reader of messages, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from enum import Enum

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
    text = registration.host_id.encode(errors="surrogateescape")  # an argument of a command may have any bytes
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


class LossReason(Enum):
    """A reason why a message did not arrive."""

    QUEUE_FULL = "queue-full"
    """EAGAIN or ENOBUFS: the receiver has not read earlier messages."""
    SOCKET_GONE = "socket-gone"
    """ENOENT, ENOTDIR or ECONNREFUSED: no process has the socket bound."""
    PATH_TOO_LONG = "path-too-long"
    """The address with ``/proc/PID/root`` in front does not fit."""
    REFUSED = "refused"
    """Another error of the kernel: no permission, a socket of another type."""
    UNPUBLISHED = "unpublished"
    """The process withdrew its storage, and so the address, after the sample was taken."""


_REASON_BY_ERRNO = {
    errno.EAGAIN: LossReason.QUEUE_FULL,
    errno.ENOBUFS: LossReason.QUEUE_FULL,
    errno.ENOENT: LossReason.SOCKET_GONE,
    errno.ENOTDIR: LossReason.SOCKET_GONE,
    errno.ECONNREFUSED: LossReason.SOCKET_GONE,
}
_MAX_PATH_BYTES = 107  # and a NUL


class DatagramSender:
    """One socket that sends to any number of receivers."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, path: str, data: bytes) -> LossReason | None:
        """Send `data` to the socket at `path`; return None on success, otherwise the reason."""
        address = os.fsencode(path)
        if len(address) > _MAX_PATH_BYTES:
            return LossReason.PATH_TOO_LONG
        try:
            self._socket.sendto(data, address)
        except OSError as error:
            return _REASON_BY_ERRNO.get(error.errno or 0, LossReason.REFUSED)
        return None
