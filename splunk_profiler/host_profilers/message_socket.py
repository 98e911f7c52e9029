"""The datagram socket, with a name in the file system, that host profilers send to.

`MessageSocket` owns the socket and its file. A thread of ours or the one that forks makes it; the
thread that stops publishing closes it. The application may close its descriptor at any moment. Must
not import `socket`: gevent and eventlet may patch it later, and this socket has to be real.

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
from splunk_profiler.system.descriptors import file_of

_NAME_PREFIX = "splunk-profiler-"
_STANDARD_STREAMS = 3
_ATTEMPTS = 3
_NAME_PATTERN = re.compile(rf"{_NAME_PREFIX}\d+-[0-9a-f]{{8}}\.sock")


class MessageSocketError(Exception):
    """Error for a socket that could not be made; the message says why."""


class MessageSocket:
    """A bound socket, whose file is in `directory`, an absolute path. The directory is made if it is missing.

    Raises:
        MessageSocketError: it cannot be made there.
    """

    def __init__(self, directory: str) -> None:
        self._pid = os.getpid()
        self._directory = directory
        self.path = new_path(directory)
        self._open()

    def _open(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                Path(self._directory).mkdir(parents=True, exist_ok=True)
                self._socket, self._file = _bind_socket(self.path)
                return
            except OSError as error:
                if error.errno != EBADF or attempt == _ATTEMPTS - 1:  # EBADF: the application has closed it
                    raise MessageSocketError(f"{self._directory}: {error.strerror or error}") from None

    def reopen(self) -> None:
        """Make the socket anew after the application has closed it, at the path that profilers have read.

        Raises:
            MessageSocketError: it cannot be made any more.
        """
        self.close()
        self._open()

    def remove_stale_sockets(self) -> None:
        """Remove the sockets that no process has bound from the directory. Takes long in a large one.

        Process ids prove nothing: containers may share the directory. A socket has its name before it can be reached,
        but is not listed then: both lock the directory.
        """
        with suppress(OSError):
            for entry in os.scandir(self._directory):
                if _NAME_PATTERN.fullmatch(entry.name) and entry.name != Path(self.path).name:
                    with suppress(OSError):  # it is not ours to remove, or another process has just removed it
                        if _is_abandoned(entry):
                            Path(entry.path).unlink()

    @property
    def address(self) -> bytes:
        """Path in the process storage."""
        return os.fsencode(self.path)

    @property
    def is_open(self) -> bool:
        """False if the application has closed the socket, as daemons close all descriptors."""
        found = file_of(self._socket.fileno())
        return found is not None and found == self._file

    def fileno(self) -> int:
        """Return the socket's descriptor, which does not block."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. Only the process that made it removes its file."""
        if self.is_open:
            with suppress(OSError):  # the application has just closed it
                self._socket.close()
        else:
            self._socket.detach()  # the application may have reused the number
        if self._pid == os.getpid():
            with suppress(OSError):  # it is gone, or its directory cannot be written to
                Path(self.path).unlink()


def new_path(directory: str) -> str:
    """Return a path in `directory` that no other socket has.

    Raises:
        MessageSocketError: it is too long.
    """
    path = f"{directory.rstrip('/')}/{_NAME_PREFIX}{os.getpid()}-{os.urandom(4).hex()}.sock"
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise MessageSocketError(
            f"{path} has {length} bytes; host profilers reach sockets whose path has {MAX_PATH_BYTES}"
        )
    return path


def _bind_socket(path: str) -> tuple[_socket.socket, tuple[int, int] | None]:
    """Return a socket with that name, and its device and inode."""
    new_socket = _datagram_socket()
    file = file_of(new_socket.fileno())
    try:
        os.fchmod(new_socket.fileno(), 0o600)  # before `bind`: the file gets the mode of the socket
        new_socket.bind(path)
    except BaseException:
        if file_of(new_socket.fileno()) == file:
            new_socket.close()
        else:
            new_socket.detach()  # the application may have reused the number
        raise
    return new_socket, file


def _datagram_socket() -> _socket.socket:
    new_socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
    if new_socket.fileno() >= _STANDARD_STREAMS:
        return new_socket
    # A standard stream is closed. A daemon opens it anew, and expects that its number is free.
    try:
        descriptor = fcntl.fcntl(new_socket.fileno(), fcntl.F_DUPFD_CLOEXEC, _STANDARD_STREAMS)
        return _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM, 0, descriptor)
    finally:
        new_socket.close()


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
