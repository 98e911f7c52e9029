"""A `SocketReader` beside a sender; shared by tests.

Import it after `pytest.importorskip("splunk_profiler._context")`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from splunk_profiler._context import SocketReader

WAIT_S = 60.0  # time limit of a test, in seconds


class SocketReaderThread:
    """A socket that a thread of a `SocketReader` reads, and a sender. Ends with the block.

    Attributes:
        reader: gathers its messages.
        sender: non-blocking socket that is connected to the receiver.
        receiver: the socket that is read.
    """

    def __init__(self) -> None:
        self.receiver, self.sender = connected_pair()
        self.sender.setblocking(False)
        self.reader = SocketReader(self.receiver.fileno())
        self._inode = os.fstat(self.receiver.fileno()).st_ino

    def start(self) -> None:
        """Start the reading thread."""
        self.reader.start()

    def wait_for_end(self) -> None:
        """Wait until the thread reads no more."""
        deadline = time.monotonic() + WAIT_S
        while self.reader.is_receiving:
            assert time.monotonic() < deadline, "it still reads"
            time.sleep(0)

    def send(self, message: bytes) -> None:
        """Send, and wait for room."""
        while True:
            try:
                self.sender.send(message)
                return
            except BlockingIOError:
                assert select.select([], [self.sender], [], WAIT_S)[1], "nobody reads"

    def fill(self, message: bytes, max_messages: int) -> int:
        """Send until the reader (`max_messages`) and the kernel are full; return the number of messages."""
        sent = 0
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            was_full = self.reader.counts()[0] >= max_messages
            try:
                self.sender.send(message)
                sent += 1
            except BlockingIOError:
                if was_full:
                    return sent
                select.select([], [self.sender], [], 0.01)  # not longer: what is read now may be the last that fits
        raise AssertionError("nobody reads")

    def take_messages(self, count: int) -> list[bytes]:
        """Wait for that many messages and return them; no more may follow."""
        messages: list[bytes] = []
        while len(messages) < count:
            more = self.reader.take(WAIT_S)
            assert more, f"{len(messages)} messages of {count} have come"
            messages += more
        assert len(messages) == count
        return messages

    def __enter__(self) -> SocketReaderThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.reader.stop()
        self.sender.close()
        try:
            is_own_socket = os.fstat(self.receiver.fileno()).st_ino == self._inode
        except OSError:
            is_own_socket = False
        if is_own_socket:
            self.receiver.close()
        else:
            self.receiver.detach()


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return a bound receiver and a sender; a `socketpair` would have a longer queue."""
    receiver, sender = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind("")  # the kernel finds a name
    sender.connect(receiver.getsockname())
    return receiver, sender


def receiving_threads() -> set[str]:
    """Return the kernel's ids of the threads of this process that receive messages."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            if (task / "comm").read_text("ascii") == "splunk-receiver\n":
                found.add(task.name)
    return found


def wait_for_receiving_threads(count: int) -> None:
    """Wait until the process has that many threads that receive messages."""
    deadline = time.monotonic() + WAIT_S
    while len(receiving_threads()) != count:
        assert time.monotonic() < deadline, f"{len(receiving_threads())} threads receive, not {count}"
        time.sleep(0)


def numbered_message(number: int, size: int = 46) -> bytes:
    """Return a message with this number."""
    return struct.pack("=I", number).ljust(size, b".")


def number_of(message: bytes) -> int:
    """Return the number of a message."""
    (number,) = struct.unpack_from("=I", message)
    return int(number)
