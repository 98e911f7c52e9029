"""The capture schedule: all threads in one period, those of the trace filter in a shorter one between.

Values and arithmetic of the portable ticker; the native one's are in `native/walker/schedule.c`.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from splunk_profiler.raw import Periods

NEVER_NS = sys.maxsize


class Tick(NamedTuple):
    """A deadline that has come due.

    Attributes:
        period_ns: time since the previous deadline of its kind.
        skipped: number of missed deadlines of its kind before it.
    """

    deadline_ns: int
    period_ns: int
    is_focused: bool
    skipped: int


class Schedule:
    """Absolute deadlines of two kinds, on one grid that restarts at each deadline of all threads.

    A capture of all threads replaces a focused one at the same time.
    """

    def __init__(self, now_ns: int, periods: Periods) -> None:
        self._grid_start_ns = now_ns
        self._periods = periods
        self._next_focused_ns = NEVER_NS

    def set_periods(self, periods: Periods, now_ns: int) -> None:
        """Change the periods. The deadline of all threads moves; the grid of focused ones restarts."""
        before, self._periods = self._periods, periods
        if not before.all_ns and periods.all_ns:
            self._grid_start_ns = now_ns  # there was no deadline to count from
        if before.focused_ns != periods.focused_ns:
            self._next_focused_ns = NEVER_NS

    def next_deadline_ns(self, now_ns: int, *, has_traces: bool) -> int:
        """Return the next deadline; focused ones need traces in the trace filter."""
        focused_ns = self._periods.focused_ns
        if not has_traces or not focused_ns:
            self._next_focused_ns = NEVER_NS
        elif self._next_focused_ns == NEVER_NS:
            elapsed_periods = (now_ns - self._grid_start_ns) // focused_ns
            self._next_focused_ns = self._grid_start_ns + (elapsed_periods + 1) * focused_ns
        return min(self._next_all_ns, self._next_focused_ns)

    def pop_tick(self, now_ns: int) -> Tick:
        """Return the due deadline that `next_deadline_ns` returned; skip those missed during a stall."""
        is_focused = now_ns < self._next_all_ns
        deadline_ns = self._next_focused_ns if is_focused else self._next_all_ns
        period_ns = self._periods.focused_ns if is_focused else self._periods.all_ns
        skipped = (now_ns - deadline_ns) // period_ns
        deadline_ns += skipped * period_ns
        if is_focused:
            self._next_focused_ns = deadline_ns + period_ns
        else:
            self._grid_start_ns, self._next_focused_ns = deadline_ns, NEVER_NS
        return Tick(deadline_ns, period_ns, is_focused, skipped)

    @property
    def _next_all_ns(self) -> int:
        return self._grid_start_ns + self._periods.all_ns if self._periods.all_ns else NEVER_NS
