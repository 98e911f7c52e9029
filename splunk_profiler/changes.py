"""Which threads of a snapshot have changed since the one before, and the clocks that tell.

Most threads of a service wait most of the time, and what is said of them again and again is the same. Where samples
are added up it is said once, and counted. Runs on the sampling worker's thread; imports `threads` only.
`PortableWatch` is the contract of ``_walker.Watch`` in Python.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from splunk_profiler.threads import cpu_time_ns, living_threads

Clocks = Callable[[Sequence[int]], Sequence[tuple[int, int]]]
# RawThread, CPU ns, nice value, snapshots before this one that it rested in, and their periods in ns.
Told = tuple[Any, int, int, int, int]
# Key of a thread, and the last two of these.
Rested = tuple[int, int, int]


class Watch(Protocol):
    """See ``_walker.pyi``."""

    def changes(self, threads: Any, period_ns: int, /) -> tuple[int, Sequence[Told], Sequence[Rested]]: ...
    def rested(self) -> Sequence[Rested]: ...


class _Entry(NamedTuple):
    """A thread of the last snapshot: what was told of it last, and how often it has been the same since."""

    thread: Any
    native_id: int
    cpu_ns: int
    rests: bool
    times: int = 0
    sum_ns: int = 0


class PortableWatch:
    """See ``_walker.pyi``: the same methods with the same meaning.

    Args:
        clocks: native ids → (CPU ns, nice value) each.
        native_id_of: asked where a thread does not say it.
        counts_rest: tell of threads that rest only that.
    """

    def __init__(self, clocks: Clocks, native_id_of: Callable[[int], int], *, counts_rest: bool) -> None:
        self._clocks = clocks
        self._native_id_of = native_id_of
        self._counts_rest = counts_rest
        self._last: dict[int, _Entry] = {}

    def changes(self, threads: Sequence[Any], period_ns: int, /) -> tuple[int, list[Told], list[Rested]]:
        """What is new of the threads of a snapshot."""
        last, self._last = self._last, {}  # who is not told everything is told all the next time
        process_ns = time.process_time_ns()
        ids = [self._native_id(thread, last.get(thread.key)) for thread in threads]
        changed: list[Told] = []
        now = {}
        for thread, native_id, (cpu_ns, nice) in zip(threads, ids, self._clocks(ids), strict=True):
            before = last.pop(thread.key, None)
            rests = self._counts_rest and before is not None and cpu_ns <= before.cpu_ns
            if rests and before is not None and before.rests and _is_same(thread, before.thread):
                now[thread.key] = before._replace(times=before.times + 1, sum_ns=before.sum_ns + period_ns)
                continue
            known_ns = cpu_ns or (0 if before is None else before.cpu_ns)
            now[thread.key] = _Entry(thread, native_id, known_ns, rests)
            changed.append((thread, cpu_ns, nice, *((0, 0) if before is None else (before.times, before.sum_ns))))
        self._last = now
        return process_ns, changed, [(key, gone.times, gone.sum_ns) for key, gone in last.items()]

    def rested(self) -> list[Rested]:
        """How long threads have rested; the next `changes` tells all."""
        found = [(key, entry.times, entry.sum_ns) for key, entry in self._last.items() if entry.times]
        self._last = {key: entry._replace(rests=False, times=0, sum_ns=0) for key, entry in self._last.items()}
        return found

    def _native_id(self, thread: Any, before: _Entry | None) -> int:
        known: int = thread.native_id or (0 if before is None else before.native_id)
        return known or self._native_id_of(thread.ident)


def make_watch(*, native: bool, counts_rest: bool) -> Watch:
    """A watch on the threads that a walker of that kind sees."""
    if not native:
        return PortableWatch(portable_clocks, native_id_of, counts_rest=counts_rest)
    from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

    return _walker.Watch(native_id_of, counts_rest=counts_rest)


def native_id_of(ident: int) -> int:
    """The native id of a thread that `threading` knows, else 0."""
    thread = living_threads().get(ident)
    return 0 if thread is None else thread.native_id or 0


def portable_clocks(native_ids: Sequence[int]) -> list[tuple[int, int]]:
    """(CPU time in ns, nice value) of each thread of this process, (0, 0) for one that has ended."""
    return [_clock(native_id) for native_id in native_ids]


def _clock(native_id: int) -> tuple[int, int]:
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0, 0
    try:
        return cpu_time_ns(native_id), os.getpriority(os.PRIO_PROCESS, native_id)
    except OSError:
        return 0, 0


def _is_same(thread: Any, before: Any) -> bool:
    return thread.stack is before.stack and thread.context is before.context and thread.labels is before.labels
