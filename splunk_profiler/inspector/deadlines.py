"""Instants at equal distances: cost never becomes drift, and a stall is not made up for in a burst.

Pure: the time is told. Must not import anything of the package.
"""

from __future__ import annotations


class Deadlines:
    """What is to be done every `period_s` seconds, from `now` on.

    Attributes:
        at: the next instant, in the seconds of the clock that `now` was read from.
        missed: instants that nothing was done at, because the one before took too long.
    """

    def __init__(self, period_s: float, now: float) -> None:
        self._period_s = period_s
        self._start = now
        self._number = 0
        self.missed = 0

    @property
    def at(self) -> float:
        """When it is to be done next."""
        return self._start + self._number * self._period_s

    def due(self, now: float) -> bool:
        """Whether to do it now; then the next instant is the first one after `now`."""
        if now < self.at:
            return False
        # Counted from the start and not added up, which would gather what floating-point numbers round away.
        latest = max(int((now - self._start) / self._period_s), self._number)
        if self._start + (latest + 1) * self._period_s <= now:
            latest += 1  # the division was rounded to the wrong side
        self.missed += latest - self._number
        self._number = latest + 1
        return True
