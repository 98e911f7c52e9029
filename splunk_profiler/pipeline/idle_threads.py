"""Which threads of a snapshot have changed since the one before.

Most threads of a service wait most of the time, and what is said of them again and again is the same. Where samples
are added up it is said once, and counted. Runs on the sampling worker's thread; imports `raw` only.
`PortableIdleTracker` is the contract of ``_walker.IdleTracker`` in Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from splunk_profiler.raw import IdleSpan, ThreadChange


class IdleTracker(Protocol):
    """See ``_walker.pyi``."""

    def find_changes(self, threads: Any, period_ns: int, /) -> tuple[Sequence[ThreadChange], Sequence[IdleSpan]]: ...
    def take_idle_spans(self) -> Sequence[IdleSpan]: ...


class _Entry(NamedTuple):
    """A thread of the last snapshot: what was told of it last, and how often it has been the same since."""

    thread: Any
    cpu_ns: int
    is_idle: bool
    idle_count: int = 0
    idle_ns: int = 0


class PortableIdleTracker:
    """See ``_walker.pyi``: the same methods with the same meaning.

    Args:
        skip_idle: tell of threads that rest only that.
    """

    def __init__(self, *, skip_idle: bool) -> None:
        self._skip_idle = skip_idle
        self._last: dict[int, _Entry] = {}

    def find_changes(self, threads: Sequence[Any], period_ns: int, /) -> tuple[list[ThreadChange], list[IdleSpan]]:
        """What is new of the threads of a snapshot."""
        last, self._last = self._last, {}  # who is not told everything is told all the next time
        changed: list[ThreadChange] = []
        now = {}
        for thread in threads:
            before = last.pop(thread.key, None)
            is_idle = self._skip_idle and before is not None and thread.cpu_ns <= before.cpu_ns and not thread.state
            if is_idle and before is not None and before.is_idle and _is_same(thread, before.thread):
                now[thread.key] = before._replace(idle_count=before.idle_count + 1, idle_ns=before.idle_ns + period_ns)
                continue
            known_ns = thread.cpu_ns or (0 if before is None else before.cpu_ns)
            now[thread.key] = _Entry(thread, known_ns, is_idle)
            nice = 0 if self._skip_idle else read_nice_value(thread.native_id)
            idle = (0, 0) if before is None else (before.idle_count, before.idle_ns)
            changed.append(ThreadChange(thread, nice, *idle))
        self._last = now
        return changed, [IdleSpan(key, ended.idle_count, ended.idle_ns) for key, ended in last.items()]

    def take_idle_spans(self) -> list[IdleSpan]:
        """How long threads have rested; the next `find_changes` tells all."""
        found = [
            IdleSpan(key, entry.idle_count, entry.idle_ns) for key, entry in self._last.items() if entry.idle_count
        ]
        self._last = {key: entry._replace(is_idle=False, idle_count=0, idle_ns=0) for key, entry in self._last.items()}
        return found


def make_idle_tracker(*, native: bool, skip_idle: bool = False) -> IdleTracker:
    """Return what tells changes in snapshots of that walker. `skip_idle`: of threads that rest only how often."""
    if not native:
        return PortableIdleTracker(skip_idle=skip_idle)
    from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

    return _walker.IdleTracker(skip_idle=skip_idle)


def read_nice_value(native_id: int) -> int:
    """The nice value of a thread of this process; 0 as well if it has ended, or the system does not say."""
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0
    try:
        return os.getpriority(os.PRIO_PROCESS, native_id)
    except (OSError, OverflowError):
        return 0


def _is_same(thread: Any, before: Any) -> bool:
    return thread.stack is before.stack and thread.context is before.context and thread.labels is before.labels
