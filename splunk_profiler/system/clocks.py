"""The clocks that stop for nobody: libraries such as freezegun replace `time.monotonic` in all modules.

Deadlines and distances are on these, or a process that is tested with a frozen clock would never end. Imports nothing
of ours.
"""

from __future__ import annotations

import time

_HAS_CLOCKS = hasattr(time, "clock_gettime")  # not on Windows, where a start says that nothing is sampled


def monotonic() -> float:
    """Return the current instant in seconds."""
    return time.clock_gettime(time.CLOCK_MONOTONIC) if _HAS_CLOCKS else time.monotonic()


def monotonic_ns() -> int:
    """Return the current instant."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) if _HAS_CLOCKS else time.monotonic_ns()


def boottime_ns() -> int:
    """Return the current instant on the clock of a stream, which all processes of a machine share."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
