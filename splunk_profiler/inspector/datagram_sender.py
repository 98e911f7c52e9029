"""A sender of datagrams to sockets of other processes that never blocks. Used by one thread."""

from __future__ import annotations

import errno
import os
import socket
from enum import Enum


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
