"""Absolute deadlines at equal distances: no drift from slow work, no burst after a stall."""

from __future__ import annotations


class Deadlines:
    """Deadlines every `period_s` seconds; the first one is `now`.

    Attributes:
        missed: number of deadlines that passed while earlier work took too long.
    """

    def __init__(self, period_s: float, now: float) -> None:
        self._period_s = period_s
        self._start = now
        self._next_index = 0
        self.missed = 0

    @property
    def next_deadline_s(self) -> float:
        """The next deadline, on the clock of `now`."""
        return self._start + self._next_index * self._period_s

    def advance_if_due(self, now: float) -> bool:
        """Return True if the deadline has come; the next one is then the first after `now`."""
        if now < self.next_deadline_s:
            return False
        # Deadlines are multiples of the period, because sums would gather rounding errors.
        latest_index = max(int((now - self._start) / self._period_s), self._next_index)
        if self._start + (latest_index + 1) * self._period_s <= now:
            latest_index += 1  # the division was rounded to the wrong side
        self.missed += latest_index - self._next_index
        self._next_index = latest_index + 1
        return True
