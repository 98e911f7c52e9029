"""The clocks that stop for nobody: libraries such as freezegun replace `time.monotonic` in all modules.

Deadlines and distances are on these, or a process that is tested with a frozen clock would never end. Imports nothing
of ours.
"""

from __future__ import annotations

import time

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Return the current instant in seconds."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def monotonic_ns() -> int:
    """Return the current instant."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def boottime_ns() -> int:
    """Return the current instant on the clock of a stream, which all processes of a machine share."""
    return time.clock_gettime_ns(_BOOT_TIME)
