"""The threads of a snapshot that have changed since the previous one.

Most threads of a service are idle and have the same sample again and again. For profiles, each is
sampled once and then counted. Runs on the sampling worker's thread; imports `raw` only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from splunk_profiler.raw import IdleTime, ThreadChange, ThreadChanges

if TYPE_CHECKING:
    from splunk_profiler import _walker

IdleTracker: TypeAlias = "_walker.IdleTracker | PortableIdleTracker"  # same methods


class _Entry(NamedTuple):
    """A thread as it was last reported, and its idle time since then."""

    thread: Any
    cpu_ns: int
    is_idle: bool
    idle_count: int = 0
    idle_ns: int = 0


class PortableIdleTracker:
    """`IdleTracker` in Python; with `skip_idle`, it reports idle threads by their idle times only."""

    def __init__(self, *, skip_idle: bool) -> None:
        self._skip_idle = skip_idle
        self._last: dict[int, _Entry] = {}

    def find_changes(self, threads: Sequence[Any], period_ns: int, /) -> ThreadChanges:
        """Return the threads that have changed since the last call, and the idle times of those that are gone."""
        last, self._last = self._last, {}  # if this call fails, the next one reports every thread
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
        ended = [IdleTime(key, entry.idle_count, entry.idle_ns) for key, entry in last.items()]
        return ThreadChanges(changed, ended)

    def take_idle_times(self) -> list[IdleTime]:
        """Return the idle times of all idle threads; report every thread next time."""
        last = self._last
        self._last = {key: entry._replace(is_idle=False, idle_count=0, idle_ns=0) for key, entry in last.items()}
        return [IdleTime(key, entry.idle_count, entry.idle_ns) for key, entry in last.items() if entry.idle_count]


def make_idle_tracker(*, native: bool, skip_idle: bool = False) -> IdleTracker:
    """Return the tracker for snapshots of the native or the portable walker."""
    if not native:
        return PortableIdleTracker(skip_idle=skip_idle)
    from splunk_profiler import _walker  # noqa: PLC0415  # exists on some systems only

    return _walker.IdleTracker(skip_idle=skip_idle)


def read_nice_value(native_id: int) -> int:
    """Return the nice value of a thread of this process; 0 if it has ended or cannot be read."""
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0
    try:
        return os.getpriority(os.PRIO_PROCESS, native_id)
    except (OSError, OverflowError):
        return 0


def _is_same(thread: Any, before: Any) -> bool:
    return thread.stack is before.stack and thread.context is before.context and thread.labels is before.labels
