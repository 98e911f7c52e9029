"""Sends to a socket as fast as it can: ``flood_sender.py PATH ATTEMPTS LIVE``, as a host profiler gone mad would.

LIVE is the hexadecimal trace id and transaction id of a transaction. Says ``ready``, waits for a line, and ends with
how many datagrams of each kind were sent, and how many were refused, as JSON.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable

from marked_work import say

_STACKS = 16


_KINDS: dict[str, Callable[[int, bytes], bytes]] = {
    "matched": lambda number, live: struct.pack("=HH24s16sH", 1, 1, live, bytes([number % _STACKS]) * 16, 1),
    "unmatched": lambda _, __: struct.pack("=HH24s16sH", 1, 1, os.urandom(24), os.urandom(16), 65535),
    "cut": lambda number, live: struct.pack("=HH24s16sH", 1, 1, live, bytes(16), 1)[: number % 46],
    "unknown": lambda number, _: struct.pack("=HH", 3 + number % 60_000, 1) + os.urandom(number % 100),
    "registration": lambda _, __: struct.pack("=HHII", 2, 2, 100, 5) + b"flood",
    "too_long": lambda number, _: bytes(65_537 + number % 1000),
    "empty": lambda _, __: b"",
}


def main(path: str, attempts: int, live: bytes) -> None:
    kinds = tuple(_KINDS)
    sent: Counter[str] = Counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.connect(path)
        say("ready")
        sys.stdin.readline()
        for number in range(attempts):
            kind = kinds[number % len(kinds)]
            try:
                sender.send(_KINDS[kind](number, live))
            except BlockingIOError:
                kind = "refused"
            sent[kind] += 1
    say("sent", sent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
