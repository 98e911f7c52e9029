"""Tests of the correlator's counts."""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

extension = pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built")

from splunk_profiler.host_profilers.correlator import Correlator  # noqa: E402

REGISTRATION = struct.pack("=HHI", 2, 1, 100)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as made:
        made.bind(str(tmp_path / "s"))
        yield made


def send(inbox: socket.socket, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(inbox.getsockname())
        for message in messages:
            sender.send(message)


def make() -> Correlator:
    return Correlator(True, 10, extension.SocketReader)


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_the_counts_of_messages_are_logged_at_the_stop(inbox: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "splunk_profiler")
    correlator = make()
    correlator.listen(inbox.fileno(), lambda: None)
    send(inbox, REGISTRATION, b"x")
    until(lambda: correlator.counts().received == 2)
    correlator.stop(1.0)
    assert correlator.counts().received == 2
    assert "from host profilers: CorrelationCounters(received=2" in caplog.text


def test_what_came_to_a_socket_that_is_gone_still_counts(inbox: socket.socket, tmp_path: Path) -> None:
    correlator = make()
    correlator.listen(inbox.fileno(), lambda: None)
    send(inbox, REGISTRATION)
    until(lambda: correlator.counts().received == 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
        other.bind(str(tmp_path / "t"))
        correlator.listen(other.fileno(), lambda: None)
        send(other, REGISTRATION)
        until(lambda: correlator.counts().received == 2)
        correlator.stop(1.0)


def test_descriptor_with_the_number_of_our_lost_socket_is_left_alone(inbox: socket.socket) -> None:
    correlator = make()
    send(inbox, b"the application's")
    with pytest.raises(OSError, match="closed meanwhile"):
        correlator.listen(inbox.fileno(), lambda: None, lambda: False)
    correlator.stop(1.0)
    assert inbox.recv(100) == b"the application's"
    send(inbox, b"and more")
    assert inbox.recv(100) == b"and more"


def test_a_forked_child_counts_anew(inbox: socket.socket) -> None:
    correlator = make()
    correlator.listen(inbox.fileno(), lambda: None)
    send(inbox, b"x", struct.pack("=HH", 99, 1))
    until(lambda: correlator.counts()[:4] == (2, 0, 1, 1))
    correlator.stop(1.0)
    correlator.reset_after_fork()
    assert set(correlator.counts()) == {0}
