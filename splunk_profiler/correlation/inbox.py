"""The socket that host profilers send to: a datagram socket with a name in the file system.

`Inbox` owns the socket and its file. Made and closed on whichever thread starts and stops publishing. Must not
import `socket`: gevent and eventlet may still have to replace what is in there, and this one has to be real.

Specification: Elastic universal profiling integration, "Messaging Socket".
"""

from __future__ import annotations

import _socket
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from splunk_profiler.correlation.storage import MOST_PATH_BYTES

_PREFIX = "splunk-profiler-"
_NAME = re.compile(rf"{_PREFIX}\d+-[0-9a-f]{{8}}\.sock")


class InboxError(Exception):
    """The socket cannot be had; the text says why."""


class Inbox:
    """A bound socket.

    Args:
        directory: absolute path of the directory that its file is made in; made if it is missing.

    Raises:
        InboxError: it cannot be made there.
    """

    def __init__(self, directory: str) -> None:
        self._pid = os.getpid()
        self.path = ""
        path = _new_path(directory)
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._socket = _bound(path)
            self._inode = _inode(self._socket)
            self.path = str(self._socket.getsockname())
        except OSError as error:
            raise InboxError(f"{directory}: {error.strerror or error}") from None
        _remove_stale(directory)

    @property
    def address(self) -> bytes:
        """The path, as it is told to host profilers."""
        return os.fsencode(self.path)

    def fileno(self) -> int:
        """The socket's descriptor; it does not block."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. Its file goes with it, in the process that made it: a child's copy leaves it alone."""
        if _inode(self._socket) == self._inode:
            self._socket.close()
        else:  # the application has closed all descriptors, as daemons do; the number is somebody else's now
            self._socket.detach()
        if self._pid == os.getpid():
            Path(self.path).unlink(missing_ok=True)


def _inode(made: _socket.socket) -> tuple[int, int] | None:
    """What the socket's descriptor stands for, or None if that is closed."""
    try:
        found = os.fstat(made.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _new_path(directory: str) -> str:
    path = f"{directory.rstrip('/')}/{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}.sock"
    length = len(os.fsencode(path))
    if length > MOST_PATH_BYTES:
        raise InboxError(f"{path} has {length} bytes; host profilers reach sockets whose path has {MOST_PATH_BYTES}")
    return path


def _bound(path: str) -> _socket.socket:
    made = _datagram_socket()
    try:
        os.fchmod(made.fileno(), 0o600)  # the file gets the mode of the socket: nobody else may write, at no moment
        made.bind(path)
    except BaseException:
        made.close()
        raise
    return made


def _datagram_socket() -> _socket.socket:
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)


def _remove_stale(directory: str) -> None:
    """Remove the sockets of processes that were killed before they could do it themselves.

    A process id says nothing in a directory that containers share. What tells is that nobody has the socket bound.
    """
    with suppress(OSError):
        for entry in os.scandir(directory):
            if _NAME.fullmatch(entry.name) and _is_abandoned(entry):
                Path(entry.path).unlink(missing_ok=True)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        return False
    probe = _datagram_socket()
    try:
        probe.connect(entry.path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        probe.close()
    return False
