"""The parts of the connection to the exporter that both ends know: names, proofs, and frames of messages.

The host writes a challenge of random bytes, a proof that it knows the token of the tree, and then a stream without
frames of the transport. The first message to the host is the exporter's proof. A command that asks for the status of a
host (`status`) has a proof of another kind. After it come the inode of the exporter's end of the host's connection (a
process id may be another one in each namespace), and one message as the answer.
"""

from __future__ import annotations

import _socket
import struct

try:
    from _blake2 import blake2b  # as `hashlib` has it; that would load OpenSSL, 4 MB in each profiled process
except ImportError:
    from hashlib import blake2b

SENT = b"sent"  # the exporter's last message: everything has been sent on
LENGTH = struct.Struct("<I")  # before each message to the host
MAX_MESSAGE_BYTES = 64 * 1024
MAX_CONNECTIONS = 256
REFUSAL = f"the exporter process of this tree of processes serves {MAX_CONNECTIONS} others already".encode()
CHALLENGE_BYTES = PROOF_BYTES = 16
QUESTION = struct.Struct("<I")  # inode of the exporter's end of a host's connection
_DIGEST_BYTES = 16
_PEER = struct.Struct("iII")  # pid, uid, gid


def digest(*words: str) -> str:
    """Return a hash of the words, as hexadecimal digits."""
    text = "\0".join(words).encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def frame(message: bytes) -> bytes:
    """Return a message to the host as it is sent."""
    return LENGTH.pack(len(message)) + message


def socket_name(token: str, uid: int) -> bytes:
    """Return the abstract name of the exporter's socket, which all can see."""
    return f"\0splunk-profiler-{digest('name', token)}-{uid}".encode()


def prove_exporter(token: str, challenge: bytes) -> bytes:
    """Return the proof of an exporter that it knows the token."""
    return _prove(token, challenge, b"exporter")


def prove_host(token: str, challenge: bytes) -> bytes:
    """Return the proof of a host. Only a peer that has given the exporter's proof gets it: it cannot be reused."""
    return _prove(token, challenge, b"host")


def prove_asker(token: str, challenge: bytes) -> bytes:
    """Return the proof of a command that asks for a status."""
    return _prove(token, challenge, b"asker")


def _prove(token: str, challenge: bytes, side: bytes) -> bytes:
    return blake2b(challenge, digest_size=PROOF_BYTES, key=token.encode(), person=side).digest()


def read_peer(connected: _socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other side, as the kernel noted them when it connected or listened."""
    pid, uid, _ = _PEER.unpack(connected.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size))
    return pid, uid
