"""Collections of garbage as a callback in Python notices them, for the portable walker.

`CollectionLog.on_collection` runs on whichever thread the collector works for, in the middle of the application's
work; `drain` runs on the sampling worker's. Takes no lock: the collector calls nobody while it is calling.
Must not import anything of ours but `system.threads`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from splunk_profiler.system.threads import active_threads, real_get_ident

MIN_COLLECTION_INTERVAL_NS = 10_000_000
_MAX_LOGGED = 256
_RESERVED_FOR_LONG = 64  # of these; else one that took long would be told of on another thread, with the next
_LONG_COLLECTION_NS = 10_000_000
_GENERATIONS = 3

CodeLocation = tuple[CodeType, int, dict[str, Any]]
_LOCATION = attrgetter("f_code", "f_lasti", "f_globals")


def collect_locations(frame: FrameType | None, limit: int) -> list[CodeLocation]:
    """Where `frame` and its callers stand, at most so many; one call into C, in which no other thread can take over."""
    locations: list[CodeLocation] = []
    callers: Iterator[Any] = accumulate(repeat("f_back"), getattr, initial=frame)
    with suppress(AttributeError):  # the caller of the first frame is None, which has no code
        locations.extend(islice(map(_LOCATION, callers), limit))
    return locations


class LoggedCollection(NamedTuple):
    """A collection, before anything is named. `duration_ns` is that of all that it stands for."""

    time_ns: int
    generation: int
    collection_count: int
    duration_ns: int
    ident: int
    thread: threading.Thread | None
    locations: list[CodeLocation]
    truncated: bool
    context: Any | None
    labels: Any | None


@dataclass(slots=True)
class _SkippedCollections:
    """Collections of one generation that none that was kept stands for yet."""

    count: int = 0
    duration_ns: int = 0
    last_logged_ns: int = 0


def _return_none() -> None:
    """The thread has none."""


class CollectionLog:
    """Keeps one collection in a while of each generation, with the stack of its thread.

    Args:
        current_context: the context of the calling thread.
        current_labels: its labels.
        max_depth: frames kept of a stack.
        min_interval_ns: between two collections of one generation that are kept.
        monotonic_ns: the clock.
    """

    def __init__(
        self,
        current_context: Callable[[], Any | None] = _return_none,
        current_labels: Callable[[], Any | None] = _return_none,
        max_depth: int = 1024,
        min_interval_ns: int = MIN_COLLECTION_INTERVAL_NS,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._read_context = current_context
        self._current_labels = current_labels
        self._max_depth = max_depth
        self._min_interval_ns = min_interval_ns
        self._monotonic_ns = monotonic_ns
        self._get_ident = real_get_ident()
        self._threads = active_threads()
        self._skipped = [_SkippedCollections() for _ in range(_GENERATIONS)]
        self._logged: deque[LoggedCollection] = deque()
        self._started_ns = 0
        self._closed = False
        self._failure: Exception | None = None

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """What the collector calls. What goes wrong is kept for `drain`: a log line is not for such a place."""
        try:
            if phase == "start":
                self._started_ns = self._monotonic_ns()
            else:
                self._end_collection(info.get("generation", -1), self._monotonic_ns())
        except Exception as error:
            self._failure = error

    def close(self) -> None:
        """Keep none any more."""
        self._closed = True

    def drain(self) -> Iterator[LoggedCollection]:
        """Those that were kept, oldest first.

        Raises:
            Exception: what has gone wrong in `on_collection`, once.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
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
        locations = collect_locations(
            sys._getframe(1).f_back, self._max_depth + 1
        )  # below `on_collection` is what the collector met
        if not locations:
            return
        ident = self._get_ident()
        self._logged.append(
            LoggedCollection(
                time.time_ns(),
                generation,
                skipped.count,
                skipped.duration_ns,
                ident,
                self._threads.get(ident),
                locations[: self._max_depth],
                len(locations) > self._max_depth,
                self._read_context(),
                self._current_labels(),
            )
        )
        self._skipped[generation] = _SkippedCollections(last_logged_ns=now_ns)
