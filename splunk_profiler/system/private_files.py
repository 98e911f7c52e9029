"""Files and directories that only their owner can read, because profiles and traces hold confidential data.

Pure apart from the file system. Imports nothing of ours.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open `path` like `os.open`; a new file is readable by its owner only. Serves `open` as an opener."""
    return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)


def make_private(descriptor: int) -> None:
    """Make an open file readable by its owner only; a device, as /dev/null, keeps nothing and stays as it is.

    Raises:
        PermissionError: others can read it, and it belongs to another user.
    """
    mode = os.fstat(descriptor).st_mode
    if mode & 0o077 and not stat.S_ISCHR(mode):
        os.fchmod(descriptor, _FILE_MODE)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents; `OSError` if that fails. An existing one keeps its permissions."""
    try:
        path.mkdir(_DIRECTORY_MODE, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(_DIRECTORY_MODE, exist_ok=True)
