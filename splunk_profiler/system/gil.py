"""The GIL of this interpreter: whether there is one, and offers of it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from splunk_profiler.system import clocks
from splunk_profiler.system.threads import real

_LONG_OFFER_S = 0.002


def is_gil_enabled() -> bool:
    """Return True if the GIL is on. A free-threaded build may turn it on, and does so for some imports."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # CPython 3.13
    return enabled is None or enabled()


class GilOffer:
    """An offer of the GIL to waiting threads; long work makes it after less than a millisecond each.

    Busy threads keep the GIL for 5 ms each, and CPython takes it from a thread of ours after 5 ms as well. So after an
    offer that took long, none is made for ten times as long: else the work would get no further beside busy threads.
    """

    def __init__(self, clock: Callable[[], float] = clocks.monotonic, sleep: Callable[[float], None] | None = None):
        self._clock, self._sleep = clock, sleep
        self._next_s = 0.0

    def __call__(self) -> None:
        """Make an offer, unless the last one took long."""
        before_s = self._clock()
        if before_s >= self._next_s:
            (self._sleep or real("time", "sleep"))(0)
            after_s = self._clock()
            if after_s - before_s > _LONG_OFFER_S:
                self._next_s = after_s + 10 * (after_s - before_s)


yield_gil = GilOffer()
