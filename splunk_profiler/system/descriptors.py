"""Descriptors of ours, which the application may close at any moment, and whose numbers it may reuse.

Imports nothing of ours.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_WITNESSES: dict[str, tuple[int, tuple[int, int] | None]] = {}  # descriptor and file; forked children have them, too
HIGH_NUMBER = 1000  # above those of a library; the kernel's table of descriptors has room for 1,024 then


def open_witness(place: str, least_number: int = 0) -> None:
    """Open a descriptor, once for each place, by which `were_closed` knows that the application closes others' ones.

    One before and one after a library opens its own, and a high one, are in any range that has those. Raises nothing.
    """
    if place in _WITNESSES or were_closed():  # the number of the first one may be another file's
        return
    with suppress(OSError, ImportError):
        if not _WITNESSES:
            witness, other = os.pipe()
            os.close(other)
        else:
            import fcntl  # noqa: PLC0415  # missing on Windows

            first, _ = next(iter(_WITNESSES.copy().values()))
            witness = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, least_number)
        opened = witness, file_of(witness)
        if _WITNESSES.setdefault(place, opened) is not opened:  # another thread was faster
            os.close(witness)


def were_closed() -> bool:
    """Return True once the application has closed descriptors that it does not know, as daemons do."""
    return any(file_of(witness) != file for witness, file in _WITNESSES.copy().values())  # other threads may open some


def takes_lines(descriptor: int) -> bool:
    """Return True for what a log is written to: a terminal or another device, a pipe, or a file opened to append."""
    import fcntl  # noqa: PLC0415  # missing on Windows

    try:
        mode, flags = os.fstat(descriptor).st_mode, fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or bool(flags & os.O_APPEND)
