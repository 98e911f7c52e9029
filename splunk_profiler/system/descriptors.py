"""Descriptors of ours, which the application may close at any moment, and whose numbers it may reuse.

Imports nothing of ours.
"""

from __future__ import annotations

import os


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
