"""Garbage collections as recorded by a Python callback, for the portable walker.

`CollectionLog.on_collection` runs on the thread that collects, in the middle of the application's
work. `drain` runs on the sampler thread. Takes no lock; the collector does not call back
while it runs a callback. Must not import anything of ours but `frames` and `system.threads`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from splunk_profiler.capture.frames import ThreadWalk, collect_locations
from splunk_profiler.system import clocks
from splunk_profiler.system.threads import active_threads, real_get_ident

_MIN_COLLECTION_INTERVAL_NS = 10_000_000
_MAX_LOGGED = 256
_RESERVED_FOR_LONG = 64  # of these; else a long one would be merged into the next, on another thread
_LONG_COLLECTION_NS = 10_000_000
_GENERATIONS = 3


class LoggedCollection(NamedTuple):
    """A kept collection before symbolization. `duration_ns` includes those that it stands for."""

    time_ns: int
    generation: int
    collection_count: int
    duration_ns: int
    thread: threading.Thread | None
    walk: ThreadWalk


@dataclass(slots=True)
class _SkippedCollections:
    """Collections of one generation that no kept collection stands for yet."""

    count: int = 0
    duration_ns: int = 0
    last_logged_ns: int = 0


class CollectionLog:
    """A log of collections that keeps at most one per interval and generation, with its thread's stack."""

    def __init__(
        self,
        context_var: ContextVar[Any] | None = None,
        labels_var: ContextVar[Any] | None = None,
        max_depth: int = 1024,
        min_interval_ns: int = _MIN_COLLECTION_INTERVAL_NS,
    ) -> None:
        self._context_var = context_var
        self._labels_var = labels_var
        self._max_depth = max_depth
        self._min_interval_ns = min_interval_ns
        self._get_ident = real_get_ident()
        self._threads = active_threads()
        self._skipped = [_SkippedCollections() for _ in range(_GENERATIONS)]
        self._logged: deque[LoggedCollection] = deque()
        self._started_ns = 0
        self._closed = False
        self._failure: Exception | None = None

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Record a collection, as one of `gc.callbacks`. Errors are kept for `drain`: logging is unsafe here."""
        try:
            if phase == "start":
                self._started_ns = clocks.monotonic_ns()
            else:
                self._end_collection(info.get("generation", -1), clocks.monotonic_ns())
        except Exception as error:
            self._failure = error

    def close(self) -> None:
        """Keep no more collections."""
        self._closed = True

    def drain(self) -> Iterator[LoggedCollection]:
        """Yield the kept collections, oldest first.

        Raises:
            Exception: the last error of `on_collection`, once.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame, and those that the collector interrupted
        for _ in range(len(self._logged)):
            yield self._logged.popleft()

    def _end_collection(self, generation: int, now_ns: int) -> None:
        started_ns, self._started_ns = self._started_ns, 0
        if self._closed or not started_ns or not 0 <= generation < _GENERATIONS:
            return
        skipped = self._skipped[generation]
        skipped.count += 1
        skipped.duration_ns += now_ns - started_ns
        capacity = _MAX_LOGGED - _RESERVED_FOR_LONG if now_ns - started_ns < _LONG_COLLECTION_NS else _MAX_LOGGED
        if now_ns - skipped.last_logged_ns < self._min_interval_ns or len(self._logged) >= capacity:
            return
        # The caller of `on_collection` is the frame that the collector interrupted.
        locations = collect_locations(sys._getframe(1).f_back, self._max_depth + 1)
        if not locations:
            return
        time_ns, ident, depth = time.time_ns(), self._get_ident(), self._max_depth
        context, labels = _value_of(self._context_var), _value_of(self._labels_var)
        walk = ThreadWalk(ident, locations[:depth], len(locations) > depth, context, labels)
        self._logged.append(
            LoggedCollection(time_ns, generation, skipped.count, skipped.duration_ns, self._threads.get(ident), walk)
        )
        self._skipped[generation] = _SkippedCollections(last_logged_ns=now_ns)


def _value_of(variable: ContextVar[Any] | None) -> Any | None:
    return None if variable is None else variable.get(None)
