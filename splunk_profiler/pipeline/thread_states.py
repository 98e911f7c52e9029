"""The last state of each thread, and for how long it has been idle since it was reported.

A stream lists the threads of a snapshot that have changed. For profiles the others are only counted:
each is sampled once, and again when it changes, ends, or the profile is over. Pure; imports `stream` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from splunk_profiler.stream.captured import CapturedSnapshot, ThreadState


class IdleTime(NamedTuple):
    """The idle time of a thread: number of snapshots in which it was idle, and sum of their periods."""

    number: int
    snapshot_count: int
    period_ns: int


class ThreadChanges(NamedTuple):
    """The threads to sample, the idle times of threads up to the previous snapshot, and the threads that have ended."""

    changed: list[ThreadState]
    idle: list[IdleTime]
    ended: list[int]


class ThreadStates:
    """The threads of the last snapshot, by their numbers; with `skips_idle`, idle threads are only counted."""

    def __init__(self, *, skips_idle: bool) -> None:
        self.skips_idle = skips_idle
        self._states: dict[int, ThreadState] = {}  # oldest thread first
        self._totals = (0, 0)  # number of all snapshots and sum of their periods
        # The totals when a thread was last reported, if idle ones are not.
        self._reported: dict[int, tuple[int, int]] = {}
        self._reports_all = True  # the next snapshot

    def states(self) -> Iterable[ThreadState]:
        """Return the states of all threads of the last snapshot, oldest thread first."""
        return self._states.values()

    def update(self, snapshot: CapturedSnapshot, period_ns: int) -> ThreadChanges:
        """Apply a snapshot of all threads, and return what is to be reported of it."""
        states = self._states
        listed = {state.info.thread.index: state for state in snapshot.threads}
        if snapshot.is_complete:
            ended = list(states.keys() - listed.keys())
        else:
            ended = [number for number in dict.fromkeys(snapshot.ended) if number in states]
        reports_all = self._reports_all or not self.skips_idle
        idle = self._idle_times(states if reports_all else (*ended, *listed)) if self.skips_idle else []
        for number in ended:
            del states[number]
            self._reported.pop(number, None)
        states.update(listed)
        changed = states if reports_all else listed
        self._reports_all = False
        self.repeat(1, period_ns)
        if self.skips_idle:
            self._reported.update(dict.fromkeys(changed, self._totals))
        return ThreadChanges(list(changed.values()), idle, ended)

    def repeat(self, count: int, period_ns: int) -> None:
        """Count so many snapshots more in which all threads are as they were."""
        self._totals = (self._totals[0] + count, self._totals[1] + count * period_ns)

    def take_idle_times(self) -> list[IdleTime]:
        """Return the idle times up to the last snapshot; the next one reports all threads."""
        self._reports_all = True
        found = self._idle_times(self._reported)
        self._reported = dict.fromkeys(self._reported, self._totals)
        return found

    def _idle_times(self, numbers: Iterable[int]) -> list[IdleTime]:
        (count, period_ns), reported = self._totals, self._reported
        return [
            IdleTime(number, count - since[0], period_ns - since[1])
            for number in numbers
            if (since := reported.get(number)) is not None and since[0] < count
        ]
