"""The socket that host profilers send to: a datagram socket with a name in the file system.

`MessageSocket` owns the socket and its file. Made on a thread of ours or on the one that forks, closed on the one that
stops publishing. The application may close its descriptor at any moment. Must not import `socket`: gevent and eventlet
may still have to replace what is in there, and this one has to be real.

Specification: Elastic universal profiling integration, "Messaging Socket".
"""

from __future__ import annotations

import _socket
import fcntl
import os
import re
import stat
from contextlib import suppress
from errno import EBADF
from pathlib import Path

from splunk_profiler.host_profilers.process_storage import MAX_PATH_BYTES

_NAME_PREFIX = "splunk-profiler-"
_STANDARD_STREAMS = 3
_ATTEMPTS = 3
_NAME_PATTERN = re.compile(rf"{_NAME_PREFIX}\d+-[0-9a-f]{{8}}\.sock")


class MessageSocketError(Exception):
    """The socket cannot be had; the text says why."""


class MessageSocket:
    """A bound socket.

    Args:
        directory: absolute path of the directory that its file is made in; made if it is missing.

    Raises:
        MessageSocketError: it cannot be made there.
    """

    def __init__(self, directory: str) -> None:
        self._pid = os.getpid()
        self._directory = directory
        self.path = _new_path(directory)
        self._open()

    def _open(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                Path(self._directory).mkdir(parents=True, exist_ok=True)
                self._socket, self._inode = _bind_socket(self.path)
                return
            except OSError as error:
                if error.errno != EBADF or attempt == _ATTEMPTS - 1:  # else the application has closed it meanwhile
                    raise MessageSocketError(f"{self._directory}: {error.strerror or error}") from None

    def reopen(self) -> None:
        """Make the socket anew after somebody else has closed it. Profilers have read its path, and do not look again.

        Raises:
            MessageSocketError: it cannot be made any more.
        """
        self.close()
        self._open()

    def remove_stale_sockets(self) -> None:
        """Remove the sockets that killed processes have left in the directory. Takes long in a large one."""
        _remove_stale(self._directory, Path(self.path).name)

    @property
    def address(self) -> bytes:
        """The path, as it is told to host profilers."""
        return os.fsencode(self.path)

    @property
    def is_open(self) -> bool:
        """False if the application has closed the socket, as daemons close all descriptors."""
        found = _inode(self._socket)
        return found is not None and found == self._inode

    def fileno(self) -> int:
        """The socket's descriptor; it does not block."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. Its file goes with it, in the process that made it: a child's copy leaves it alone."""
        if self.is_open:
            with suppress(OSError):  # it was closed just now
                self._socket.close()
        else:
            self._socket.detach()  # the number may be somebody else's by now
            self._wake_reader()
        if self._pid == os.getpid():
            with suppress(OSError):  # it is gone, or in a directory that nobody can write to any more
                Path(self.path).unlink()

    def _wake_reader(self) -> None:
        """Whoever waits for messages keeps the socket alive, and hears of its end by the next message only."""
        if self._pid == os.getpid():
            sender = _datagram_socket()
            with suppress(OSError):  # nobody waits
                sender.sendto(b"", self.path)
            sender.close()


def _inode(new_socket: _socket.socket) -> tuple[int, int] | None:
    """What the socket's descriptor stands for, or None if that is closed."""
    try:
        found = os.fstat(new_socket.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _new_path(directory: str) -> str:
    path = f"{directory.rstrip('/')}/{_NAME_PREFIX}{os.getpid()}-{os.urandom(4).hex()}.sock"
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise MessageSocketError(
            f"{path} has {length} bytes; host profilers reach sockets whose path has {MAX_PATH_BYTES}"
        )
    return path


def _bind_socket(path: str) -> tuple[_socket.socket, tuple[int, int] | None]:
    """A socket with that name, and what its descriptor stands for."""
    new_socket = _datagram_socket()
    inode = _inode(new_socket)
    try:
        os.fchmod(
            new_socket.fileno(), 0o600
        )  # the file gets the mode of the socket: nobody else may write, at no moment
        new_socket.bind(path)
    except BaseException:
        if _inode(new_socket) == inode:
            new_socket.close()
        else:
            new_socket.detach()  # the number may be somebody else's by now
        raise
    return new_socket, inode


def _datagram_socket() -> _socket.socket:
    new_socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
    if new_socket.fileno() >= _STANDARD_STREAMS:
        return new_socket
    # One of the standard streams is closed. A daemon opens it anew, and counts on the number being free.
    try:
        descriptor = fcntl.fcntl(new_socket.fileno(), fcntl.F_DUPFD_CLOEXEC, _STANDARD_STREAMS)
        return _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM, 0, descriptor)
    finally:
        new_socket.close()


def _remove_stale(directory: str, own_name: str) -> None:
    """Remove the sockets of processes that were killed before they could do it themselves.

    A process id says nothing in a directory that containers share. What tells is that nobody has the socket bound. One
    that is just being bound has its name before it can be reached, but is not listed then: both lock the directory.
    """
    with suppress(OSError):
        for entry in os.scandir(directory):
            if _NAME_PATTERN.fullmatch(entry.name) and entry.name != own_name:
                with suppress(OSError):  # this one is somebody else's to remove, or was removed just now
                    if _is_abandoned(entry):
                        Path(entry.path).unlink()


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        return False
    probe = _datagram_socket()
    try:
        probe.connect(entry.path)
    except ConnectionRefusedError:
        return True
    finally:
        probe.close()
    return False
