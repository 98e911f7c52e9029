"""Descriptors of ours, which the application may close at any moment, and whose numbers it may reuse.

Imports nothing of ours.
"""

from __future__ import annotations

import os
import stat


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def takes_lines(descriptor: int) -> bool:
    """Return True for what a log is written to: a terminal or another device, a pipe, or a file opened to append."""
    import fcntl  # noqa: PLC0415  # missing on Windows

    try:
        mode, flags = os.fstat(descriptor).st_mode, fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or bool(flags & os.O_APPEND)
