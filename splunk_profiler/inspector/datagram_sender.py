"""Sends datagrams to sockets of other processes, and never waits for one of them.

`DatagramSender` owns one socket for all receivers. Used by one thread. Must not import anything of the package.
"""

from __future__ import annotations

import errno
import os
import socket
from enum import Enum


class LossReason(Enum):
    """Why a message did not arrive."""

    QUEUE_FULL = "queue-full"
    """The receiver has not read what was sent before: EAGAIN."""
    SOCKET_GONE = "socket-gone"
    """Nobody has the socket bound: ENOENT, ENOTDIR or ECONNREFUSED."""
    PATH_TOO_LONG = "path-too-long"
    """Its address does not fit once ``/proc/PID/root`` stands before it."""
    REFUSED = "refused"
    """The kernel refuses for another reason: no permission, a socket of another kind."""
    UNPUBLISHED = "unpublished"
    """The process withdrew its storage between the sample and the message: nowhere to send it to."""


_REASON_BY_ERRNO = {
    errno.EAGAIN: LossReason.QUEUE_FULL,
    errno.ENOBUFS: LossReason.QUEUE_FULL,
    errno.ENOENT: LossReason.SOCKET_GONE,
    errno.ENOTDIR: LossReason.SOCKET_GONE,
    errno.ECONNREFUSED: LossReason.SOCKET_GONE,
}
_MAX_PATH_BYTES = 107  # and a NUL


class DatagramSender:
    """Sends to any number of sockets."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, path: str, data: bytes) -> LossReason | None:
        """Send `data` to the socket at `path`; None if it is in the receiver's queue, otherwise why it is not."""
        address = os.fsencode(path)
        if len(address) > _MAX_PATH_BYTES:
            return LossReason.PATH_TOO_LONG
        try:
            self._socket.sendto(data, address)
        except OSError as error:
            return _REASON_BY_ERRNO.get(error.errno or 0, LossReason.REFUSED)
        return None
