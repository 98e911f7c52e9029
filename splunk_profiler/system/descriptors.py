"""Descriptors of ours, which the application may close at any moment, and whose numbers it may reuse.

Imports nothing of ours.
"""

from __future__ import annotations

import os
import stat
from functools import cache


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@cache
def _open_witness() -> tuple[int, tuple[int, int] | None]:
    """Open a descriptor; return it with its file."""
    witness, other = os.pipe()
    os.close(other)
    return witness, file_of(witness)


def were_closed() -> bool:
    """Return True once the application has closed all descriptors that it does not know, as daemons do.

    The first call opens the descriptor that shows it, which forked children have, too.
    """
    try:
        witness, file = _open_witness()
    except OSError:  # none is free
        return False
    return file_of(witness) != file


def takes_lines(descriptor: int) -> bool:
    """Return True for what a log is written to: a terminal or another device, a pipe, or a file opened to append."""
    import fcntl  # noqa: PLC0415  # missing on Windows

    try:
        mode, flags = os.fstat(descriptor).st_mode, fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or bool(flags & os.O_APPEND)
