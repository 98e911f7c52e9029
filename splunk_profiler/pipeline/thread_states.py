"""The last state of each thread, and for how long it has been idle since it was reported.

A stream lists the threads of a snapshot that have changed. For profiles the others are only counted:
each is sampled once, and again when it changes, ends, or the profile is over. Pure; imports `stream` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Entry:
    """A thread; `count` and `period_ns` are the totals of snapshots when it was last reported."""

    state: ThreadState
    count: int
    period_ns: int


class ThreadStates:
    """The threads of the last snapshot, by their numbers; with `skips_idle`, idle threads are only counted."""

    def __init__(self, *, skips_idle: bool) -> None:
        self._skips_idle = skips_idle
        self._entries: dict[int, _Entry] = {}
        self._count = self._period_ns = 0  # totals of all snapshots
        self._reports_all = True  # the next snapshot

    def states(self) -> Iterable[ThreadState]:
        """Return the states of all threads of the last snapshot, oldest thread first."""
        return [entry.state for entry in self._entries.values()]

    def update(self, snapshot: CapturedSnapshot, period_ns: int) -> ThreadChanges:
        """Apply a snapshot of all threads, and return what is to be reported of it."""
        entries, count, before_ns = self._entries, self._count, self._period_ns
        listed = {state.number for state in snapshot.threads}
        ended = [number for number in dict.fromkeys(snapshot.ended) if number in entries]
        if snapshot.is_complete:
            ended = list(entries.keys() - listed)
        changed_entries = []
        idle = [self._idle_time(number, entries.pop(number)) for number in ended]
        for state in snapshot.threads:
            entry = entries.get(state.number)
            if entry is None:
                entry = entries[state.number] = _Entry(state, count, before_ns)
            elif entry.count < count:
                idle.append(self._idle_time(state.number, entry))
            entry.state = state
            changed_entries.append(entry)
        if self._reports_all or not self._skips_idle:
            changed_entries = list(entries.values())
        self._reports_all = False
        self._count, self._period_ns = count + 1, before_ns + period_ns
        for entry in changed_entries:
            entry.count, entry.period_ns = self._count, self._period_ns
        return ThreadChanges(
            [entry.state for entry in changed_entries], [one for one in idle if one.snapshot_count], ended
        )

    def take_idle_times(self) -> list[IdleTime]:
        """Return the idle times up to the last snapshot; the next one reports all threads."""
        self._reports_all = True
        found = []
        for number, entry in self._entries.items():
            if entry.count < self._count:
                found.append(self._idle_time(number, entry))
                entry.count, entry.period_ns = self._count, self._period_ns
        return found

    def _idle_time(self, number: int, entry: _Entry) -> IdleTime:
        return IdleTime(number, self._count - entry.count, self._period_ns - entry.period_ns)
