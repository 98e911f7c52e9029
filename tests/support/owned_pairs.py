"""Pairs of sockets of which one is the native walker's."""

from __future__ import annotations

import os
import socket

from splunk_profiler._walker import OwnedSocket


def owned_pair() -> tuple[OwnedSocket, socket.socket]:
    """Return an owned socket, and the one that it is connected to."""
    name = b"\0" + os.urandom(16).hex().encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        owned = OwnedSocket.connect(name)
        return owned, listener.accept()[0]
