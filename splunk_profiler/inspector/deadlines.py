"""Instants at equal distances: cost never becomes drift, and a stall is not made up for in a burst.

Pure: the time is told. Must not import anything of the package.
"""

from __future__ import annotations


class Deadlines:
    """What is to be done every `period_s` seconds, from `now` on.

    Attributes:
        next_deadline_s: the next instant, in the seconds of the clock that `now` was read from.
        missed: instants that nothing was done at, because the one before took too long.
    """

    def __init__(self, period_s: float, now: float) -> None:
        self._period_s = period_s
        self._start = now
        self._next_index = 0
        self.missed = 0

    @property
    def next_deadline_s(self) -> float:
        """When it is to be done next."""
        return self._start + self._next_index * self._period_s

    def advance_if_due(self, now: float) -> bool:
        """Whether to do it now; then the next instant is the first one after `now`."""
        if now < self.next_deadline_s:
            return False
        # Counted from the start and not added up, which would gather what floating-point numbers round away.
        latest_index = max(int((now - self._start) / self._period_s), self._next_index)
        if self._start + (latest_index + 1) * self._period_s <= now:
            latest_index += 1  # the division was rounded to the wrong side
        self.missed += latest_index - self._next_index
        self._next_index = latest_index + 1
        return True
