"""Which threads of a snapshot have changed since the one before.

Most threads of a service wait most of the time, and what is said of them again and again is the same. Where samples
are added up it is said once, and counted. Runs on the sampling worker's thread; imports nothing of ours.
`PortableWatch` is the contract of ``_walker.Watch`` in Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

# RawThread, nice value, snapshots before this one that it rested in, and their periods in ns.
Told = tuple[Any, int, int, int]
# Key of a thread, and the last two of these.
Rested = tuple[int, int, int]


class Watch(Protocol):
    """See ``_walker.pyi``."""

    def changes(self, threads: Any, period_ns: int, /) -> tuple[Sequence[Told], Sequence[Rested]]: ...
    def rested(self) -> Sequence[Rested]: ...


class _Entry(NamedTuple):
    """A thread of the last snapshot: what was told of it last, and how often it has been the same since."""

    thread: Any
    cpu_ns: int
    rests: bool
    times: int = 0
    sum_ns: int = 0


class PortableWatch:
    """See ``_walker.pyi``: the same methods with the same meaning.

    Args:
        counts_rest: tell of threads that rest only that.
    """

    def __init__(self, *, counts_rest: bool) -> None:
        self._counts_rest = counts_rest
        self._last: dict[int, _Entry] = {}

    def changes(self, threads: Sequence[Any], period_ns: int, /) -> tuple[list[Told], list[Rested]]:
        """What is new of the threads of a snapshot."""
        last, self._last = self._last, {}  # who is not told everything is told all the next time
        changed: list[Told] = []
        now = {}
        for thread in threads:
            before = last.pop(thread.key, None)
            rests = self._counts_rest and before is not None and thread.cpu_ns <= before.cpu_ns and not thread.state
            if rests and before is not None and before.rests and _is_same(thread, before.thread):
                now[thread.key] = before._replace(times=before.times + 1, sum_ns=before.sum_ns + period_ns)
                continue
            known_ns = thread.cpu_ns or (0 if before is None else before.cpu_ns)
            now[thread.key] = _Entry(thread, known_ns, rests)
            nice = 0 if self._counts_rest else os_priority(thread.native_id)
            changed.append((thread, nice, *((0, 0) if before is None else (before.times, before.sum_ns))))
        self._last = now
        return changed, [(key, gone.times, gone.sum_ns) for key, gone in last.items()]

    def rested(self) -> list[Rested]:
        """How long threads have rested; the next `changes` tells all."""
        found = [(key, entry.times, entry.sum_ns) for key, entry in self._last.items() if entry.times]
        self._last = {key: entry._replace(rests=False, times=0, sum_ns=0) for key, entry in self._last.items()}
        return found


def make_watch(*, native: bool, counts_rest: bool = False) -> Watch:
    """Return what tells changes in snapshots of that walker. `counts_rest`: of threads that rest only how often."""
    if not native:
        return PortableWatch(counts_rest=counts_rest)
    from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

    return _walker.Watch(counts_rest=counts_rest)


def os_priority(native_id: int) -> int:
    """The nice value of a thread of this process; 0 as well if it has ended, or the system does not say."""
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0
    try:
        return os.getpriority(os.PRIO_PROCESS, native_id)
    except (OSError, OverflowError):
        return 0


def _is_same(thread: Any, before: Any) -> bool:
    return thread.stack is before.stack and thread.context is before.context and thread.labels is before.labels
