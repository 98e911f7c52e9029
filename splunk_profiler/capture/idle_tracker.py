"""The threads of a snapshot that have changed since the previous one.

Most threads of a service are idle and would be recorded again and again as they were. Runs on the
sampling worker's thread; imports `raw` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from splunk_profiler.raw import ThreadChanges

if TYPE_CHECKING:
    from splunk_profiler import _walker

IdleTracker: TypeAlias = "_walker.IdleTracker | PortableIdleTracker"  # same methods


class PortableIdleTracker:
    """`IdleTracker` in Python."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, int, bool]] = {}  # key → thread, its last known CPU time, True if idle

    def find_changes(self, threads: Sequence[Any], /) -> ThreadChanges:
        """Return the threads that have changed since the last call, and the keys of those that are gone."""
        last, self._last = self._last, {}  # if this call fails, the next one reports every thread
        changed, now = [], {}
        for thread in threads:
            before, before_ns, was_idle = last.pop(thread.key, (None, thread.cpu_ns, False))
            is_idle = before is not None and thread.cpu_ns <= before_ns and not thread.state
            now[thread.key] = (thread, thread.cpu_ns or before_ns, is_idle)
            if not (is_idle and was_idle and _is_same(thread, before)):
                changed.append(thread)
        self._last = now
        return ThreadChanges(changed, list(last))

    def clear(self) -> None:
        """Have the next call report every thread."""
        self._last = {}


def make_idle_tracker(*, native: bool) -> IdleTracker:
    """Return the tracker for snapshots of the native or the portable walker."""
    if not native:
        return PortableIdleTracker()
    from splunk_profiler import _walker  # noqa: PLC0415  # exists on some systems only

    return _walker.IdleTracker()


def _is_same(thread: Any, before: Any) -> bool:
    return thread.stack is before.stack and thread.context is before.context and thread.labels is before.labels
