"""Tests of files that only their owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from splunk_profiler.system.private_files import make_private


def mode(descriptor: int) -> int:
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


def test_a_file_that_others_can_read_becomes_private(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        os.fchmod(file.fileno(), 0o644)
        make_private(file.fileno())
        assert mode(file.fileno()) == 0o600


def test_a_device_stays_as_it_is() -> None:
    ends = os.openpty()
    try:
        os.fchmod(ends[1], 0o622)
        make_private(ends[1])
        assert mode(ends[1]) == 0o622
    finally:
        for end in ends:
            os.close(end)
