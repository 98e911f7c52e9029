"""The native calls on a socket do nothing once its number is another file's."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker")
from splunk_profiler._walker import socket_close, socket_receive, socket_send, socket_shutdown

Identity = tuple[int, int, int]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def _identify(made: socket.socket) -> Identity:
    found = os.fstat(made.fileno())
    return made.fileno(), found.st_dev, found.st_ino


def _send(identity: Identity) -> int:
    return socket_send(*identity, b"lost")


def _receive(identity: Identity) -> int:
    return socket_receive(*identity, bytearray(10))


def test_socket_sends_and_receives_without_waiting(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    identity = _identify(ours)
    target = bytearray(10)
    assert socket_receive(*identity, target) == 0
    assert socket_send(*identity, b"there") == 5
    assert theirs.recv(10) == b"there"
    theirs.sendall(b"back")
    assert socket_receive(*identity, target) == 4
    assert target == b"back" + bytes(6)
    while sent := socket_send(*identity, bytes(100_000)):
        assert sent <= 65536  # it keeps the GIL


def test_socket_says_when_the_other_side_has_ended(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    identity = _identify(ours)
    assert socket_shutdown(*identity)
    assert theirs.recv(10) == b""
    theirs.close()
    with pytest.raises(BrokenPipeError):
        socket_receive(*identity, bytearray(10))
    with pytest.raises(BrokenPipeError):  # and no SIGPIPE
        socket_send(*identity, b"lost")
    assert socket_close(*identity)
    ours.detach()


@pytest.mark.parametrize(
    "call",
    [_send, _receive],
    ids=["send", "receive"],
)
def test_socket_call_on_a_number_that_is_anothers_is_an_error(
    call: Callable[[Identity], int], pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    ours, _ = pair
    identity = _identify(ours)
    others, end = socket.socketpair()
    with others, end, (tmp_path / "file").open("w+b") as file:
        end.sendall(b"theirs")
        for source in (file.fileno(), others.fileno()):
            os.dup2(source, identity[0])
            with pytest.raises(OSError, match="Bad file") as caught:
                call(identity)
            assert caught.value.errno == errno.EBADF
            assert not socket_shutdown(*identity)
            assert not socket_close(*identity)
        assert others.recv(10) == b"theirs"
        assert end.send(b"still open") == 10
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(10)
    assert (tmp_path / "file").read_bytes() == b""
    ours.close()
    with pytest.raises(OSError, match="Bad file"):
        call(identity)


@pytest.mark.parametrize("function", [socket_send, socket_receive, socket_shutdown, socket_close])
@pytest.mark.parametrize("arguments", [(), ("0", 0, 0), (0, 0, 0, None, None)])
def test_socket_call_with_other_arguments_is_an_error(function: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        function(*arguments)
