"""The server of an exporter process, with real sockets, where hosts have much to say."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from splunk_profiler.cli.unix_peers import unix_peers
from splunk_profiler.exporter_process.server import Server
from splunk_profiler.exporter_process.transport import (
    QUESTION,
    SENT,
    frame,
    prove_asker,
    prove_exporter,
    prove_host,
    socket_name,
)

_TOKEN = os.urandom(16).hex()
_CHALLENGE = os.urandom(16)
_TIMEOUT_S = 60


class _Session:
    """A session that is over with its stream, or after some ticks more."""

    end_timeout_s = float(_TIMEOUT_S)
    has_failed = False

    def __init__(self, feed: Callable[[bytes], None], ending_ticks: int = 0) -> None:
        self._feed = feed
        self._ticks_left = ending_ticks
        self._is_closed = False
        self.ticks = 0

    @property
    def is_done(self) -> bool:
        return self._is_closed and self._ticks_left <= 0

    def feed(self, data: bytes) -> None:
        self._feed(data)

    def tick(self) -> None:
        self.ticks += 1
        self._ticks_left -= self._is_closed

    def messages(self) -> list[bytes]:
        return []

    def status(self) -> bytes:
        raise ValueError("no status")

    def log_lines(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self._is_closed = True


def _connect() -> socket.socket:
    """Connect as a process that may become a host."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_TIMEOUT_S)
    connection.connect(socket_name(_TOKEN, os.geteuid()))
    connection.sendall(_CHALLENGE)
    return connection


def _connect_host() -> socket.socket:
    connection, answer = _connect(), frame(prove_exporter(_TOKEN, _CHALLENGE))
    assert connection.recv(len(answer)) == answer
    connection.sendall(prove_host(_TOKEN, _CHALLENGE))
    return connection


def _serve(feed: Callable[[bytes], None], make_session: Callable[..., _Session] = _Session) -> threading.Thread:
    """Start a server, which ends with its last host."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_name(_TOKEN, os.geteuid()))
        listener.listen()
        served = threading.Thread(target=Server(listener.dup(), lambda _: make_session(feed), _TOKEN).run)
        served.start()
    return served


def _end(connection: socket.socket) -> bytes:
    """End a host's stream, and return what comes up to the end of the connection."""
    connection.shutdown(socket.SHUT_WR)
    with connection, connection.makefile("rb") as stream:
        return stream.read()


def test_status_that_fails_costs_the_host_no_confirmation() -> None:
    is_fed = threading.Event()
    served = _serve(lambda _: is_fed.set())
    host = _connect_host()
    host.sendall(b"data")
    assert is_fed.wait(_TIMEOUT_S)
    inode = unix_peers()[os.fstat(host.fileno()).st_ino].inode
    with _connect() as asker, asker.makefile("rb") as stream:
        asker.sendall(prove_asker(_TOKEN, _CHALLENGE) + QUESTION.pack(inode))
        assert stream.read() == frame(prove_exporter(_TOKEN, _CHALLENGE)) + frame(b"")
    assert _end(host) == frame(SENT)
    served.join(_TIMEOUT_S)


def test_new_connection_is_answered_between_two_hosts_with_much_to_say() -> None:
    is_fed, have_all_sent = threading.Event(), threading.Event()
    arrived: list[socket.socket] = []
    answered: list[bool] = []

    def feed(data: bytes) -> None:
        if data == b"first":
            is_fed.set()
            assert have_all_sent.wait(_TIMEOUT_S)  # so that the next look finds both hosts with something
        elif not arrived:
            arrived.append(_connect())
        else:
            answered.append(bool(select.select(arrived, [], [], 0)[0]))

    served = _serve(feed)
    hosts = [_connect_host() for _ in range(2)]
    hosts[0].sendall(b"first")
    assert is_fed.wait(_TIMEOUT_S)
    for host in hosts:
        host.sendall(b"second")
    have_all_sent.set()
    for connection in hosts:
        _end(connection)
    arrived[0].close()
    served.join(_TIMEOUT_S)
    assert answered == [True]


def test_hosts_hear_no_more_while_another_one_is_ending() -> None:
    sessions: list[_Session] = []
    ending_ticks = 60

    def make_session(feed: Callable[[bytes], None]) -> _Session:
        sessions.append(_Session(feed, ending_ticks))
        return sessions[-1]

    is_fed = threading.Semaphore(0)
    served = _serve(lambda _: is_fed.release(), make_session)
    ending, other = _connect_host(), _connect_host()
    for host in (ending, other):
        host.sendall(b"data")
        assert is_fed.acquire(timeout=_TIMEOUT_S)
    before = sessions[1].ticks
    assert _end(ending) == frame(SENT)
    assert sessions[1].ticks - before < ending_ticks / 2
    assert _end(other) == frame(SENT)
    served.join(_TIMEOUT_S)
