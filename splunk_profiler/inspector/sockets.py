"""A check that messages would arrive at a process's socket; it connects and sends nothing."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from splunk_profiler.inspector.model import Interface, Problem

_MAX_PATH_BYTES = 89
"""Longest path that fits in an address of 108 bytes with ``/proc/PID/root`` in front."""


def socket_problem(root: Path, path: str) -> Problem | None:
    """Return why messages to `path` below `root` would not arrive; None if they would."""
    return _path_problem(path) or _file_problem(f"{root}{path}", path) or _connection_problem(f"{root}{path}", path)


def _path_problem(path: str) -> Problem | None:
    size = len(os.fsencode(path))
    checks = (
        (not path, "socket-path-empty", ""),
        ("\0" in path, "socket-path-not-text", ""),
        (not path.startswith("/"), "socket-path-relative", path),
        (".." in path.split("/"), "socket-path-dots", path),
        (size > _MAX_PATH_BYTES, "socket-path-too-long", f"{size} bytes, at most {_MAX_PATH_BYTES} fit"),
    )
    return next((_problem(code, detail) for is_wrong, code, detail in checks if is_wrong), None)


def _file_problem(outside_path: str, path: str) -> Problem | None:
    try:
        mode = Path(outside_path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _problem("socket-absent", path)
    except OSError as error:
        return _problem("socket-unknown", f"{path}: {error.strerror}")
    return None if stat.S_ISSOCK(mode) else _problem("socket-not-socket", path)


def _connection_problem(outside_path: str, path: str) -> Problem | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(outside_path)
        except ConnectionRefusedError:
            return _problem("socket-refused", path)
        except OSError as error:
            is_wrong_type = error.errno == errno.EPROTOTYPE
            return _problem("socket-not-datagram" if is_wrong_type else "socket-unknown", f"{path}: {error.strerror}")
    return None


def _problem(code: str, detail: str = "") -> Problem:
    return Problem(Interface.ELASTIC, code, detail)
