"""When which threads are looked at: all of them in one rhythm, those of a few traces in a quicker one between.

Values and arithmetic of the portable ticker; the native one has the same in `native/ticker.c`. Imports nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

NEVER_NS = sys.maxsize
_SLOWEST_LEAD_NS = 1_000_000_000
_LONGEST_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Focus:
    """The traces whose threads are looked at more often.

    Attributes:
        traces: their ids as keys; who changes it does so in one operation, on any thread. Read at each tick.
        span_key: the key under which a context has its span.
        trace_of: context → the id of its span's trace, or 0.
    """

    traces: dict[int, Any]
    span_key: str
    trace_of: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Periods:
    """How far apart deadlines are; 0: there are none.

    Attributes:
        all_ns: those of all threads.
        focused_ns: those of the focus.
    """

    all_ns: int
    focused_ns: int

    @property
    def all_leads(self) -> bool:
        """Whether a deadline of all threads comes often enough to say what both cost."""
        return self.all_ns > 0 and (not self.focused_ns or self.all_ns <= _SLOWEST_LEAD_NS)

    @property
    def leading_ns(self) -> int:
        """What a limit changes, and both in its ratio: that of all threads, or a second, or the only one there is."""
        if self.all_leads or not self.all_ns:
            return self.all_ns or self.focused_ns
        return _SLOWEST_LEAD_NS

    @property
    def closest_ns(self) -> int:
        """How far apart the focus is looked at: a deadline of all threads serves it as well."""
        return min(self.leading_ns, self.focused_ns)

    def stretched(self, leading_ns: int) -> Periods:
        """Both in the ratio of `leading_ns` to the one of these; where all threads do not lead, to a minute at most."""
        if not self.all_ns:
            return Periods(0, leading_ns)
        all_ns = leading_ns
        if not self.all_leads:
            all_ns = max(self.all_ns, min(self.all_ns * leading_ns // self.leading_ns, _LONGEST_NS))
        focused_ns = self.focused_ns * leading_ns // self.leading_ns
        return Periods(all_ns, min(focused_ns, max(all_ns, self.focused_ns)))  # beyond that it never comes


class Tick(NamedTuple):
    """A deadline that has come, how far it was from the one before, and how many of its kind have passed by since."""

    deadline_ns: int
    period_ns: int
    focused: bool
    skipped: int


class Rhythm:
    """Absolute deadlines of two kinds, on one grid, which begins anew at each deadline of all threads.

    A capture of all threads serves the focus as well, so no other deadline comes with it.

    Args:
        now_ns: the beginning.
        periods: the distances.
    """

    def __init__(self, now_ns: int, periods: Periods) -> None:
        self._begin_ns = now_ns
        self._periods = periods
        self._some_at_ns = NEVER_NS

    def follow(self, periods: Periods, now_ns: int) -> None:
        """Other distances move the next deadlines: that of all, counted from the last; the focus's grid begins anew."""
        before, self._periods = self._periods, periods
        if not before.all_ns and periods.all_ns:
            self._begin_ns = now_ns  # there was none for as long as that
        if before.focused_ns != periods.focused_ns:
            self._some_at_ns = NEVER_NS

    def next_ns(self, now_ns: int, *, focused: bool) -> int:
        """The next deadline; `focused` says whether there is a trace in the focus."""
        some_ns = self._periods.focused_ns
        if not focused or not some_ns:
            self._some_at_ns = NEVER_NS
        elif self._some_at_ns == NEVER_NS:
            passed = (now_ns - self._begin_ns) // some_ns
            self._some_at_ns = self._begin_ns + (passed + 1) * some_ns
        return min(self._all_at_ns, self._some_at_ns)

    def take(self, now_ns: int) -> Tick:
        """The deadline that `next_ns` has named, once it has come. After a stall those before are given up."""
        focused = now_ns < self._all_at_ns
        deadline_ns = self._some_at_ns if focused else self._all_at_ns
        period_ns = self._periods.focused_ns if focused else self._periods.all_ns
        skipped = (now_ns - deadline_ns) // period_ns
        deadline_ns += skipped * period_ns
        if focused:
            self._some_at_ns = deadline_ns + period_ns
        else:
            self._begin_ns, self._some_at_ns = deadline_ns, NEVER_NS
        return Tick(deadline_ns, period_ns, focused, skipped)

    @property
    def _all_at_ns(self) -> int:
        return self._begin_ns + self._periods.all_ns if self._periods.all_ns else NEVER_NS
