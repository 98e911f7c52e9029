"""Tests of the socket reader in forked children, in many copies, and at the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from socket_reader_threads import WAIT_S, SocketReaderThread

from splunk_profiler._context import SocketReader


@pytest.fixture
def reading() -> Iterator[SocketReaderThread]:
    """Yield a reader whose thread is not started."""
    with SocketReaderThread() as made:
        yield made


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer versions warn about forks beside threads
def test_reader_in_a_forked_child_returns_at_once_and_the_parents_goes_on(reading: SocketReaderThread) -> None:
    reading.start()
    reading.send(b"gathered by the parent")
    while reading.reader.counts() != (1, 0):
        reading.reader.wake()
    child = os.fork()
    if child == 0:
        _answer_of_a_child(reading.reader)
    assert os.waitpid(child, 0)[1] == 0
    reading.send(b"sent after the fork")
    assert reading.take_messages(2) == [b"gathered by the parent", b"sent after the fork"]


def _answer_of_a_child(reader: SocketReader) -> None:
    status = 1
    try:
        signal.alarm(int(WAIT_S))
        reader.wake()
        reader.start()
        right = (
            not reader.has_message
            and reader.take(3600) == []
            and reader.counts() == (0, 0)
            and not (reader.is_receiving or reader.is_lost)
        )
        reader.stop()
        del reader
        status = 0 if right else 2
    finally:
        os._exit(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks_at_any_moment_leave_children_that_do_not_hang(reading: SocketReaderThread) -> None:
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            reading.send(b"message")

    def take() -> None:
        while not over.is_set():
            reading.reader.take(WAIT_S)

    reading.start()
    threads = [threading.Thread(target=flood), threading.Thread(target=take)]
    for thread in threads:
        thread.start()
    statuses = []
    for _ in range(50):
        child = os.fork()
        if child == 0:
            _answer_of_a_child(reading.reader)
        statuses.append(os.waitpid(child, 0)[1])
    over.set()
    threads[0].join(WAIT_S)
    reading.reader.wake()
    threads[1].join(WAIT_S)
    assert statuses == [0] * 50


def test_mailboxes_leave_no_memory_behind(reading: SocketReaderThread) -> None:
    def use() -> None:
        for _ in range(100):
            reader = SocketReader(reading.receiver.fileno())
            reader.take(0)
            with pytest.raises(OSError, match="Bad file"):
                SocketReader(-1)

    use()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        use()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 128 * 1024  # one buffer


_ENDING = """
import socket, threading
from splunk_profiler._context import SocketReader
receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
reader = SocketReader(receiver.fileno())
def flood():
    while True:
        sender.send(b'x')
def take():
    while True:
        reader.take(3600)
reader.start()
for body in (flood, take):
    threading.Thread(target=body, daemon=True).start()
while reader.counts()[0] < 5000:
    pass
print('ready')
"""


def test_a_process_ends_quietly_while_its_mailbox_is_flooded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDING], capture_output=True, text=True, timeout=WAIT_S, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
