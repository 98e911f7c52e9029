"""Files and directories that only their owner can read: profiles and traces say much about a service and its users.

Pure apart from the file system. Imports nothing of ours.
"""

from __future__ import annotations

import os
from pathlib import Path

_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open `path` as `os.open` does; a file that is made by it is its owner's alone. Serves `open` as an opener."""
    return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)


def make_private(descriptor: int) -> None:
    """Take an open file from everybody but its owner.

    Raises:
        PermissionError: others can read it, and it belongs to one of them.
    """
    if os.fstat(descriptor).st_mode & 0o077:
        os.fchmod(descriptor, _FILE_MODE)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing. One that is there keeps its permissions.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(_DIRECTORY_MODE, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(_DIRECTORY_MODE, exist_ok=True)
