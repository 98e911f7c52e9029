"""Checks of the permissions of files and directories. Imports nothing of the package."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def find_open_to_others(directory: Path) -> list[Path]:
    """Find the files and directories at and below `directory` that are open to others than their owner."""
    return [path for path in (directory, *directory.rglob("*")) if mode(path) & 0o077]


@contextmanager
def umask_cleared() -> Iterator[None]:
    """Clear the umask for the block, as some containers do."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Give up root's rights for the block."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)
