"""Tests of the start of the thread that receives: after a message, without the GIL, in a process that is full."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from socket_reader_threads import WAIT_S, SocketReaderThread, receiving_threads, wait_for_receiving_threads

from splunk_profiler._context import SocketReader

_BURST = 500  # fit into the reader's buffer; the kernel queues 11
_SENDER = f"""
import os, socket, struct, sys
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', {int(WAIT_S)}, 0))
sender.connect(chr(0) + sys.argv[1])
os.write(1, b'r')
os.read(0, 1)
try:
    for number in range({_BURST}):
        sender.send(b'%d' % number)
    os.write(1, b'y')
except BlockingIOError:
    os.write(1, b'n')
"""


@pytest.fixture
def reading() -> Iterator[SocketReaderThread]:
    """Yield a reader whose thread is not started."""
    with SocketReaderThread() as made:
        yield made


def test_message_is_seen_before_there_is_a_thread_and_received_by_it(reading: SocketReaderThread) -> None:
    assert not reading.reader.has_message
    reading.send(b"the first")
    assert reading.reader.has_message
    assert not receiving_threads()
    reading.reader.start()
    assert reading.take_messages(1) == [b"the first"]
    assert not reading.reader.has_message


def test_burst_comes_while_the_gil_is_held(reading: SocketReaderThread) -> None:
    """This thread keeps the GIL until all is sent."""
    address = reading.receiver.getsockname()[1:].decode()
    command = [sys.executable, "-c", _SENDER, address]
    interval = sys.getswitchinterval()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        assert sender.stdout.read(1) == b"r"
        holding_gil, answer = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
        sys.setswitchinterval(2 * WAIT_S)
        try:
            reading.reader.start()
            holding_gil.write(sender.stdin.fileno(), b"g", 1)
            holding_gil.read(sender.stdout.fileno(), answer, 1)
        finally:
            sys.setswitchinterval(interval)
        assert answer.value == b"y", "the kernel's queue was full"
    assert reading.take_messages(_BURST) == [b"%d" % number for number in range(_BURST)]


def test_no_message_is_seen_in_a_socket_that_is_closed_or_another_one(reading: SocketReaderThread) -> None:
    number = reading.receiver.fileno()
    reading.send(b"ours")
    theirs, friend = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with theirs, friend:
        friend.send(b"not ours")
        os.dup2(theirs.fileno(), number)
        assert not reading.reader.has_message
    os.close(number)
    assert not reading.reader.has_message


def test_the_thread_of_a_reader_that_is_gone_ends(reading: SocketReaderThread) -> None:
    reader = SocketReader(reading.receiver.fileno())
    reader.start()
    wait_for_receiving_threads(1)
    del reader
    wait_for_receiving_threads(0)


_FULL = """
import resource, socket
from pathlib import Path
from splunk_profiler._context import SocketReader
receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
reader = SocketReader(receiver.fileno())
sender.send(b'x')
used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), most[1]))  # no room for the stack of a thread
try:
    reader.start()
except OSError as error:
    print(error.strerror)
assert not (reader.is_receiving or reader.is_lost)
resource.setrlimit(resource.RLIMIT_AS, most)
reader.start()
print(reader.take(3600), reader.is_receiving)
reader.stop()  # before its socket is closed
"""


def test_process_that_can_make_no_more_threads_gets_an_error_and_may_retry() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL], capture_output=True, text=True, timeout=WAIT_S, check=False, env=os.environ
    )
    assert (done.stdout, done.stderr) == ("Resource temporarily unavailable\n[b'x'] True\n", "")
