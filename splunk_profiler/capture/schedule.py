"""When which threads are looked at: all of them in one rhythm, those of a few traces in a quicker one between.

Values and arithmetic of the portable ticker; the native one has the same in `native/walker/ticker_state.c`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from splunk_profiler.raw import Periods

NEVER_NS = sys.maxsize


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """The traces whose threads are looked at more often.

    Attributes:
        traces: their ids as keys; who changes it does so in one operation, on any thread. Read at each tick.
        span_key: the key under which a context has its span.
        trace_of: context → the id of its span's trace, or 0.
    """

    traces: dict[int, Any]
    span_key: str
    trace_of: Callable[[Any], int]


class Tick(NamedTuple):
    """A deadline that has come, how far it was from the one before, and how many of its kind have passed by since."""

    deadline_ns: int
    period_ns: int
    is_focused: bool
    skipped: int


class Schedule:
    """Absolute deadlines of two kinds, on one grid, which begins anew at each deadline of all threads.

    A capture of all threads serves the focus as well, so no other deadline comes with it.

    Args:
        now_ns: the beginning.
        periods: the distances.
    """

    def __init__(self, now_ns: int, periods: Periods) -> None:
        self._grid_start_ns = now_ns
        self._periods = periods
        self._next_focused_ns = NEVER_NS

    def set_periods(self, periods: Periods, now_ns: int) -> None:
        """Other distances move the next deadlines: that of all, counted from the last; the focus's grid begins anew."""
        before, self._periods = self._periods, periods
        if not before.all_ns and periods.all_ns:
            self._grid_start_ns = now_ns  # there was none for as long as that
        if before.focused_ns != periods.focused_ns:
            self._next_focused_ns = NEVER_NS

    def next_deadline_ns(self, now_ns: int, *, is_focus_active: bool) -> int:
        """The next deadline; `is_focus_active` says whether there is a trace in the focus."""
        focused_ns = self._periods.focused_ns
        if not is_focus_active or not focused_ns:
            self._next_focused_ns = NEVER_NS
        elif self._next_focused_ns == NEVER_NS:
            elapsed_periods = (now_ns - self._grid_start_ns) // focused_ns
            self._next_focused_ns = self._grid_start_ns + (elapsed_periods + 1) * focused_ns
        return min(self._next_all_ns, self._next_focused_ns)

    def pop_tick(self, now_ns: int) -> Tick:
        """The deadline that `next_deadline_ns` has named, once it has come. After a stall those before are given up."""
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
