"""The clock on which a stream has its instants. Imports nothing of ours."""

from __future__ import annotations

import time


def boottime_ns() -> int:
    """Return the current instant on the boot-time clock, which all processes of a machine share."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
