"""The server of an exporter process, with real sockets, where hosts have much to say."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from splunk_profiler.exporter_process.server import Server
from splunk_profiler.exporter_process.transport import frame, prove_exporter, prove_host, socket_name

_TOKEN = os.urandom(16).hex()
_CHALLENGE = os.urandom(16)
_TIMEOUT_S = 60


class _Session:
    """A session that is over with its stream."""

    end_timeout_s = 1.0

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self.is_done = False

    def feed(self, data: bytes) -> None:
        self._feed(data)

    def tick(self) -> None:
        """Do nothing."""

    def messages(self) -> list[bytes]:
        return []

    def status(self) -> bytes:
        return b""

    def log_lines(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.is_done = True


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


def test_newcomer_is_answered_between_two_hosts_with_much_to_say() -> None:
    is_fed, have_all_sent = threading.Event(), threading.Event()
    newcomers: list[socket.socket] = []
    answered: list[bool] = []

    def feed(data: bytes) -> None:
        if data == b"first":
            is_fed.set()
            assert have_all_sent.wait(_TIMEOUT_S)  # so that the next look finds both hosts with something
        elif not newcomers:
            newcomers.append(_connect())
        else:
            answered.append(bool(select.select(newcomers, [], [], 0)[0]))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_name(_TOKEN, os.geteuid()))
        listener.listen()
        served = threading.Thread(target=Server(listener.dup(), lambda _: _Session(feed), _TOKEN).run)
        served.start()
    hosts = [_connect_host() for _ in range(2)]
    hosts[0].sendall(b"first")
    assert is_fed.wait(_TIMEOUT_S)
    for host in hosts:
        host.sendall(b"second")
    have_all_sent.set()
    for connection in hosts:
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(100):
            pass
        connection.close()
    newcomers[0].close()
    served.join(_TIMEOUT_S)
    assert answered == [True]
