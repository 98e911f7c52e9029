"""The parts of the connection to the exporter that both ends know: the peer's user, and frames of messages to the host.

What the host writes is a stream of bytes without frames of the transport.
"""

from __future__ import annotations

import _socket
import struct

SENT = b"sent"  # the exporter's last message: everything has been sent on
LENGTH = struct.Struct("<I")  # before each message to the host
MAX_MESSAGE_BYTES = 64 * 1024
_PEER = struct.Struct("iII")  # pid, uid, gid


def read_peer(connected: _socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other side, as the kernel noted them when it connected or listened."""
    pid, uid, _ = _PEER.unpack(connected.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size))
    return pid, uid
