"""The native socket: its calls do nothing once its number is another file's, and forked children close it."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker")
from owned_pairs import owned_pair
from target_process import environment

from splunk_profiler._walker import OwnedSocket, close_inherited_sockets, prepare_fork, set_after_fork_in_child


def _new_name() -> bytes:
    return b"\0" + os.urandom(16).hex().encode()


@pytest.fixture
def pair() -> Iterator[tuple[OwnedSocket, socket.socket]]:
    ours, theirs = owned_pair()
    with theirs:
        yield ours, theirs
    ours.close()


def _receive(ours: OwnedSocket) -> int:
    return ours.receive(bytearray(10))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_socket_sends_and_receives_without_waiting(pair: tuple[OwnedSocket, socket.socket]) -> None:
    ours, theirs = pair
    target = bytearray(10)
    assert ours.receive(target) == 0
    assert ours.send(b"there") == 5
    assert theirs.recv(10) == b"there"
    theirs.sendall(b"back")
    assert ours.receive(target) == 4
    assert target == b"back" + bytes(6)
    while sent := ours.send(bytes(100_000)):
        assert sent <= 65536  # it keeps the GIL


def test_socket_says_when_the_other_side_has_ended(pair: tuple[OwnedSocket, socket.socket]) -> None:
    ours, theirs = pair
    assert ours.shutdown()
    assert theirs.recv(10) == b""
    theirs.close()
    with pytest.raises(BrokenPipeError):
        _receive(ours)
    with pytest.raises(BrokenPipeError):  # and no SIGPIPE
        ours.send(b"lost")
    assert ours.close()
    assert ours.descriptor == -1
    assert not ours.close()


def test_socket_listens_for_others_and_knows_its_peer() -> None:
    name = _new_name()
    with pytest.raises(ConnectionRefusedError):
        OwnedSocket.connect(name)
    listener = OwnedSocket.listen(name)
    assert not os.get_inheritable(listener.descriptor)
    with pytest.raises(OSError, match="in use") as caught:
        OwnedSocket.listen(name)
    assert caught.value.errno == errno.EADDRINUSE
    ours = OwnedSocket.connect(name)
    assert (ours.peer_pid, ours.peer_uid) == (os.getpid(), os.geteuid())
    assert not os.get_inheritable(ours.descriptor)
    assert ours.close()
    assert listener.close()
    with pytest.raises(ConnectionRefusedError):
        OwnedSocket.connect(name)


def test_socket_with_a_full_backlog_does_not_wait() -> None:
    name = _new_name()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen(0)
        first = OwnedSocket.connect(name)
        with pytest.raises(BlockingIOError):
            OwnedSocket.connect(name)
        assert first.close()


def test_socket_that_is_freed_is_closed(pair: tuple[OwnedSocket, socket.socket]) -> None:
    other = OwnedSocket.listen(_new_name())
    descriptor = other.descriptor
    assert _is_open(descriptor)
    del other
    assert not _is_open(descriptor)
    assert pair[0].close()


@pytest.mark.parametrize("call", [lambda ours: ours.send(b"lost"), _receive], ids=["send", "receive"])
def test_socket_call_on_a_number_that_is_anothers_is_an_error(
    call: Callable[[OwnedSocket], int], pair: tuple[OwnedSocket, socket.socket], tmp_path: Path
) -> None:
    ours, _ = pair
    number = ours.descriptor
    others, end = socket.socketpair()
    with others, end, (tmp_path / "file").open("w+b") as file:
        end.sendall(b"theirs")
        for source in (file.fileno(), others.fileno()):
            os.dup2(source, number)
            with pytest.raises(OSError, match="Bad file") as caught:
                call(ours)
            assert caught.value.errno == errno.EBADF
            assert not ours.shutdown()
        assert not ours.close()
        assert others.recv(10) == b"theirs"
        assert end.send(b"still open") == 10
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(10)
        assert _is_open(number)
        os.close(number)
    assert (tmp_path / "file").read_bytes() == b""
    with pytest.raises(OSError, match="Bad file"):
        call(ours)


@pytest.fixture
def _handled_forks() -> Iterator[None]:
    set_after_fork_in_child(lambda: None)
    yield
    set_after_fork_in_child(None)


@pytest.mark.usefixtures("_handled_forks")
def test_child_of_os_fork_closes_inherited_sockets_when_it_is_told_to() -> None:
    inherited = OwnedSocket.listen(_new_name())
    number = inherited.descriptor

    def look() -> bool:
        own = OwnedSocket.listen(_new_name())
        was_open = _is_open(number)
        close_inherited_sockets()
        return was_open and not _is_open(number) and own.close()

    prepare_fork(True)  # as Python's hook does
    try:
        assert _fork(os.fork, look) == 0
    finally:
        prepare_fork(False)
    close_inherited_sockets()
    assert inherited.close()


@pytest.mark.usefixtures("_handled_forks")
def test_child_of_c_code_closes_inherited_sockets_at_once(tmp_path: Path) -> None:
    sockets = [OwnedSocket.listen(_new_name()) for _ in range(3)]
    numbers = [each.descriptor for each in sockets]
    with (tmp_path / "file").open("wb") as file:
        os.dup2(file.fileno(), numbers[1])
    before = [*map(_file_of, numbers)]

    def look() -> bool:  # gRPC, where it is loaded, opens files of its own in the child
        return [one == other for one, other in zip(before, map(_file_of, numbers), strict=True)] == [False, True, False]

    assert _fork(ctypes.PyDLL(None).fork, look) == 0
    os.close(numbers[1])
    assert [each.close() for each in sockets] == [True, False, True]


def _file_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _fork(fork: Callable[[], int], look: Callable[[], bool]) -> int:
    """Return the status of a child: 0 if `look` returns True there."""
    child = fork()
    if child == 0:
        status = 2
        try:
            status = 0 if look() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("name", ["connect", "listen", "send", "receive"])
@pytest.mark.parametrize("arguments", [(), ("text",), (None,), (b"", b"")])
def test_socket_call_with_other_arguments_is_an_error(name: str, arguments: tuple[Any, ...]) -> None:
    ours = OwnedSocket.listen(_new_name())
    with pytest.raises(TypeError):
        getattr(ours, name)(*arguments)
    assert ours.close()


def test_socket_name_that_is_too_long_is_an_error() -> None:
    for begin in (OwnedSocket.connect, OwnedSocket.listen):
        with pytest.raises(ValueError, match="too long"):
            begin(b"\0" + bytes(108))
    with pytest.raises(TypeError, match="cannot create"):
        OwnedSocket()


_STREAMS = """
import os
from splunk_profiler._walker import OwnedSocket
os.close(0)
os.close(2)
listener = OwnedSocket.listen(b'\\0' + os.urandom(16).hex().encode())
opened = [os.open('/dev/null', os.O_RDONLY), os.open('/dev/null', os.O_RDONLY)]
print(opened, listener.descriptor > 2, os.get_inheritable(listener.descriptor), os.get_blocking(listener.descriptor))
print(listener.close())
"""


def test_socket_takes_no_number_of_a_closed_standard_stream() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STREAMS], env=environment(), check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["[0, 2] True False False", "True"]
