"""A `SocketReader` beside a sender, with its reading thread; shared by tests.

Import it after `pytest.importorskip("splunk_profiler._context")`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from types import TracebackType

from splunk_profiler._context import SocketReader

WAIT_S = 60.0  # until a test is given up


class MailboxReader:
    """A socket whose messages a thread gathers, and one that sends to it. Ends with the block.

    Attributes:
        mailbox: gathers them.
        sender: connected to its socket; raises BlockingIOError where a blocking one would wait.
        receiver: the socket that is read.
        outcome: what `run` returned or raised, once it has.
    """

    def __init__(self) -> None:
        self.receiver, self.sender = connected_pair()
        self.sender.setblocking(False)
        self.mailbox = SocketReader(self.receiver.fileno())
        self.outcome: object = None
        self._inode = os.fstat(self.receiver.fileno()).st_ino
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.outcome = self.mailbox.run()
        except RuntimeError as error:
            self.outcome = error

    @property
    def ident(self) -> int:
        """Of the reading thread."""
        assert self._thread.ident is not None
        return self._thread.ident

    def start(self) -> None:
        """Have it read."""
        self._thread.start()

    def join_reader(self) -> object:
        """What `run` returned, once it has."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it still reads"
        return self.outcome

    def send(self, message: bytes) -> None:
        """As soon as there is room for it."""
        while True:
            try:
                self.sender.send(message)
                return
            except BlockingIOError:
                assert select.select([], [self.sender], [], WAIT_S)[1], "nobody reads"

    def fill(self, message: bytes, max_messages: int) -> int:
        """Send until the mailbox has `max_messages` of them and the kernel takes no more; how many were sent."""
        sent = 0
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            was_full = self.mailbox.counts()[0] >= max_messages
            try:
                self.sender.send(message)
                sent += 1
            except BlockingIOError:
                if was_full:
                    return sent
                select.select([], [self.sender], [], 0.01)  # not longer: what is read now may be the last that fits
        raise AssertionError("nobody reads")

    def take_messages(self, count: int) -> list[bytes]:
        """That many messages, once they are there, and nothing after them."""
        messages: list[bytes] = []
        while len(messages) < count:
            more = self.mailbox.take(WAIT_S)
            assert more, f"{len(messages)} messages of {count} have come"
            messages += more
        assert len(messages) == count
        return messages

    def __enter__(self) -> MailboxReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.mailbox.stop()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
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
    """A receiver with an address of its own, and a sender: the queue between the two of a `socketpair` is longer."""
    receiver, sender = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind("")  # the kernel finds a name
    sender.connect(receiver.getsockname())
    return receiver, sender


def numbered_message(number: int, size: int = 46) -> bytes:
    """A message that says which it is."""
    return struct.pack("=I", number).ljust(size, b".")


def number_of(message: bytes) -> int:
    """Which it is."""
    (number,) = struct.unpack_from("=I", message)
    return int(number)
