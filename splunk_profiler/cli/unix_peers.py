"""The other ends of connected Unix sockets, which only the kernel knows (netlink, ``sock_diag(7)``).

Linux only. ``/proc/net/unix`` does not say them, and the name of a socket may forge lines of that. Sees the sockets of
this network namespace, those of other users included.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_SOCK_DIAG = 4  # the protocol of netlink
_DIAG_BY_FAMILY, _DUMP_REQUEST = 20, 0x301
_ALL, _SHOW_NAME, _SHOW_PEER = 0xFFFFFFFF, 1, 4
_NAME, _PEER = 0, 2
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_QUERY = struct.Struct("=BBHIIIII")  # family, protocol, padding, states, inode, what to show, cookie
_ANSWER = struct.Struct("=BBBBIII")  # family, type, state, padding, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_INODE = struct.Struct("=I")
_TIMEOUT_S = 5.0
_BUFFER_BYTES = 1 << 17


class UnixSocket(NamedTuple):
    """A Unix socket; the name of one without a name is empty, an abstract one begins with a zero byte."""

    inode: int
    name: bytes


def unix_peers() -> dict[int, UnixSocket]:
    """Return the other end of each connected Unix socket, by its inode; empty if the kernel does not say."""
    attributes = dict(_dump_sockets())
    peers = {inode: _INODE.unpack(found[_PEER])[0] for inode, found in attributes.items() if _PEER in found}
    return {
        inode: UnixSocket(peer, attributes[peer].get(_NAME, b"")) for inode, peer in peers.items() if peer in attributes
    }


def _dump_sockets() -> Iterator[tuple[int, dict[int, bytes]]]:
    """Yield the inode and the attributes of each Unix socket."""
    with suppress(OSError, struct.error), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.settimeout(_TIMEOUT_S)
        query = _QUERY.pack(socket.AF_UNIX, 0, 0, _ALL, 0, _SHOW_NAME | _SHOW_PEER, _ALL, _ALL)
        asked.send(_HEADER.pack(_HEADER.size + len(query), _DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + query)
        while True:
            for kind, message in _split(asked.recv(_BUFFER_BYTES)):
                if kind != _DIAG_BY_FAMILY:  # the end, or an error
                    return
                yield _ANSWER.unpack_from(message)[4], dict(_read_attributes(message))


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        length, kind, *_ = _HEADER.unpack_from(data, position)
        yield kind, data[position + _HEADER.size : position + length]
        position += _align(max(length, _HEADER.size))


def _read_attributes(message: bytes) -> Iterator[tuple[int, bytes]]:
    position = _ANSWER.size
    while position < len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        yield kind, message[position + _ATTRIBUTE.size : position + length]
        position += _align(max(length, _ATTRIBUTE.size))


def _align(size: int) -> int:
    return (size + 3) & ~3
