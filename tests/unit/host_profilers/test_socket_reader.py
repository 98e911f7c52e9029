"""Tests of the socket reader: its messages, its limits, its end and its descriptor."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from socket_reader_threads import (
    WAIT_S,
    SocketReaderThread,
    number_of,
    numbered_message,
    wait_for_receiving_threads,
)

from splunk_profiler._context import SocketReader
from splunk_profiler.system.threads import wait_until

MAX_MESSAGES = 1024
MAX_BYTES = 64 * 1024  # of a message
MANY = 5000


@pytest.fixture
def reading() -> Any:
    """Yield a reader whose thread is not started."""
    with SocketReaderThread() as made:
        yield made


def test_messages_come_once_and_in_their_order_however_many(reading: SocketReaderThread) -> None:
    reading.start()
    seen: list[int] = []

    def take() -> None:
        while len(seen) < MANY:
            seen.extend(map(number_of, reading.reader.take(WAIT_S)))

    taker = threading.Thread(target=take)
    taker.start()
    for number in range(MANY):
        reading.send(numbered_message(number))
    taker.join(WAIT_S)
    assert seen == list(range(MANY))
    assert reading.reader.counts() == (MANY, 0)


@pytest.mark.parametrize("size", [1, 46, 1025, MAX_BYTES - 1, MAX_BYTES])
def test_a_message_comes_whole(reading: SocketReaderThread, size: int) -> None:
    message = os.urandom(size)
    reading.start()
    reading.send(message)
    assert reading.take_messages(1) == [message]


def test_an_empty_message_is_one(reading: SocketReaderThread) -> None:
    reading.start()
    for message in (b"", b"a", b"", b""):
        reading.send(message)
    assert reading.take_messages(4) == [b"", b"a", b"", b""]


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 2 * MAX_BYTES])
def test_a_message_that_is_too_long_is_counted_and_left_out(reading: SocketReaderThread, size: int) -> None:
    reading.start()
    for message in (b"before", bytes(size), b"after"):
        reading.send(message)
    seen: list[bytes] = []
    while len(seen) < 2:
        seen += reading.reader.take(WAIT_S)
    assert seen == [b"before", b"after"]
    assert reading.reader.counts() == (3, 1)


def test_descriptors_that_come_with_a_message_are_not_kept(reading: SocketReaderThread) -> None:
    reading.start()
    kept, sent = os.pipe()
    socket.send_fds(reading.sender, [b"with a descriptor"], [sent])
    os.close(sent)
    assert reading.take_messages(1) == [b"with a descriptor"]
    assert os.read(kept, 1) == b""  # the other end is closed
    os.close(kept)


@pytest.mark.parametrize("timeout_s", [0, 0.0, -1, -math.inf, math.nan, 0.001])
def test_without_messages_there_are_none_after_the_timeout(reading: SocketReaderThread, timeout_s: float) -> None:
    assert reading.reader.take(timeout_s) == []


@pytest.mark.parametrize("timeout_s", [3600, 1e9, math.inf])
def test_a_wake_up_before_a_wait_is_kept_for_the_next_wait_only(reading: SocketReaderThread, timeout_s: float) -> None:
    reading.reader.wake()
    reading.reader.wake()
    assert reading.reader.take(timeout_s) == []
    reading.start()
    reading.send(b"message")
    assert reading.reader.take(WAIT_S) == [b"message"]


def test_a_wake_up_ends_the_waiting_of_another_thread(reading: SocketReaderThread) -> None:
    seen: list[list[bytes]] = []
    taker = threading.Thread(target=lambda: seen.append(reading.reader.take(3600)))
    taker.start()
    reading.reader.wake()
    taker.join(WAIT_S)
    assert seen == [[]]


@pytest.mark.parametrize("timeout", ["soon", None, b"1"])
def test_what_is_no_time_is_refused(reading: SocketReaderThread, timeout: Any) -> None:
    with pytest.raises(TypeError):
        reading.reader.take(timeout)


def test_a_stop_by_another_thread_ends_the_reading_and_the_waiting(reading: SocketReaderThread) -> None:
    reading.start()
    seen: list[list[bytes]] = []
    taker = threading.Thread(target=lambda: seen.append(reading.reader.take(3600)))
    taker.start()
    reading.reader.stop()
    assert not reading.reader.is_receiving
    assert not reading.reader.is_lost
    taker.join(WAIT_S)
    assert seen == [[]]


def test_after_a_stop_senders_get_an_error_and_nothing_waits(reading: SocketReaderThread) -> None:
    reading.reader.stop()
    reading.reader.stop()
    reading.start()
    assert not reading.reader.has_message
    assert not reading.reader.is_receiving
    assert reading.reader.take(3600) == []
    with pytest.raises(OSError, match=r"Broken pipe|Connection refused"):
        reading.sender.send(b"message")


def test_what_was_gathered_before_a_stop_can_still_be_taken(reading: SocketReaderThread) -> None:
    reading.start()
    reading.fill(b"message", MAX_MESSAGES)
    reading.reader.stop()
    assert reading.reader.take(3600) == [b"message"] * MAX_MESSAGES
    assert reading.reader.take(3600) == []


def test_a_second_start_makes_no_second_thread(reading: SocketReaderThread) -> None:
    for _ in range(3):
        reading.start()
    reading.send(b"it reads")
    assert reading.take_messages(1) == [b"it reads"]
    wait_for_receiving_threads(1)


@pytest.mark.parametrize(
    ("size", "most"), [(0, MAX_MESSAGES), (4, MAX_MESSAGES), (46, MAX_MESSAGES), (1024, 64), (MAX_BYTES, 1)]
)
def test_a_full_mailbox_has_senders_wait_and_loses_nothing_that_was_sent(
    reading: SocketReaderThread, size: int, most: int
) -> None:
    reading.start()
    sent = reading.fill(bytes(size), most)
    assert reading.reader.counts() == (most, 0)
    with pytest.raises(BlockingIOError):
        reading.sender.send(bytes(size))
    assert len(reading.reader.take(0)) == most
    assert len(reading.take_messages(sent - most)) == sent - most
    reading.send(b"it goes on")
    assert reading.take_messages(1) == [b"it goes on"]


def test_messages_that_are_too_long_fill_the_reader_so_reading_is_bounded(reading: SocketReaderThread) -> None:
    reading.start()
    sent = reading.fill(bytes(MAX_BYTES + 1), 1)
    assert reading.reader.counts() == (1, 1)
    while reading.reader.counts()[0] < sent:
        assert reading.reader.take(3600) == []
    reading.send(b"it goes on")
    seen: list[bytes] = []
    while not seen:
        seen = reading.reader.take(WAIT_S)
    assert seen == [b"it goes on"]
    assert reading.reader.counts() == (sent + 1, sent)


def test_many_senders_and_takers_lose_nothing_and_duplicate_nothing(reading: SocketReaderThread) -> None:
    senders, takers, each = 4, 3, 2000
    seen: list[int] = []
    over = threading.Event()

    def send(first: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.connect(reading.receiver.getsockname())
            for number in range(first, first + each):
                own.send(numbered_message(number))

    def take() -> None:
        while not over.is_set():
            seen.extend(map(number_of, reading.reader.take(0.05)))
            if len(seen) >= senders * each:
                over.set()

    reading.start()
    sending = [threading.Thread(target=send, args=(number * each,)) for number in range(senders)]
    taking = [threading.Thread(target=take) for _ in range(takers)]
    for thread in (*sending, *taking):
        thread.start()
    for thread in sending:
        thread.join(WAIT_S)
    assert over.wait(WAIT_S)
    for thread in taking:
        thread.join(WAIT_S)
    assert sorted(seen) == list(range(senders * each))


def test_socket_closed_during_a_read_ends_reading_by_itself(reading: SocketReaderThread) -> None:
    reading.start()
    reading.send(b"it reads")
    reading.take_messages(1)
    os.close(reading.receiver.fileno())
    reading.wait_for_end()
    assert reading.reader.is_lost
    assert reading.reader.take(3600) == []


def test_socket_that_was_closed_before_is_lost_at_once(reading: SocketReaderThread) -> None:
    os.close(reading.receiver.fileno())
    reading.start()
    reading.wait_for_end()
    assert reading.reader.is_lost


def test_a_shutdown_of_the_socket_ends_the_reading(reading: SocketReaderThread) -> None:
    reading.start()
    reading.receiver.shutdown(socket.SHUT_RD)
    reading.wait_for_end()
    assert reading.reader.is_lost


def test_socket_closed_while_the_reader_is_full_ends_reading_with_room(
    reading: SocketReaderThread,
) -> None:
    reading.start()
    reading.fill(b"message", MAX_MESSAGES)
    os.close(reading.receiver.fileno())
    assert not reading.reader.is_lost
    assert reading.reader.take(3600) == [b"message"] * MAX_MESSAGES
    reading.wait_for_end()
    assert reading.reader.is_lost


@pytest.mark.parametrize("started", ["before", "after"])
def test_another_socket_under_the_number_keeps_its_messages_and_is_open(
    reading: SocketReaderThread, started: str
) -> None:
    theirs, friend = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with theirs, friend:
        friend.send(b"not ours")
        if started == "before":
            reading.start()
            reading.send(b"it reads")
            reading.take_messages(1)
        number = reading.receiver.fileno()
        os.dup2(theirs.fileno(), number)
        if started == "after":
            reading.start()
        reading.wait_for_end()
        assert reading.reader.is_lost
        reading.reader.stop()
        assert theirs.recv(100, socket.MSG_DONTWAIT) == b"not ours"
        friend.send(b"still open")
        assert theirs.recv(100, socket.MSG_DONTWAIT) == b"still open"
        os.close(number)


def test_a_file_under_the_number_is_left_alone(reading: SocketReaderThread, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+") as file:
        number = reading.receiver.fileno()
        os.dup2(file.fileno(), number)
        reading.start()
        reading.wait_for_end()
        assert reading.reader.is_lost
        reading.reader.stop()
        os.write(number, b"theirs")
        os.close(number)
    assert (tmp_path / "file").read_bytes() == b"theirs"


def test_what_is_no_socket_is_lost_at_once(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+") as file:
        reader = SocketReader(file.fileno())
        reader.start()
        assert reader.take(3600) == []
        assert reader.is_lost
        reader.stop()


@pytest.mark.parametrize(
    ("descriptor", "error"), [(-1, OSError), (1 << 20, OSError), ("3", TypeError), (None, TypeError)]
)
def test_what_is_not_open_is_refused(descriptor: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        SocketReader(descriptor)


def test_signals_that_reach_the_reading_thread_end_nothing(reading: SocketReaderThread) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(len(seen)))
    reading.start()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # so the reading thread gets them
    try:
        for number in range(50):
            os.kill(os.getpid(), signal.SIGUSR1)
            reading.send(numbered_message(number))
            assert reading.take_messages(1) == [numbered_message(number)]
            # The kernel may have chosen another thread. A signal that comes after the test would find no handler.
            assert wait_until(lambda number=number: len(seen) > number, 60)  # type: ignore[misc]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR1, before)
