"""Collections of garbage as a callback in Python notices them, for the portable walker.

`CollectionLog.note` runs on whichever thread the collector works for, in the middle of the application's
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

from splunk_profiler.system.threads import living_threads, real_get_ident

COLLECTION_DISTANCE_NS = 10_000_000
_MOST_KEPT = 256
_FOR_LONG = 64  # of these; else one that took long would be told of on another thread, with the next
_LONG_NS = 10_000_000
_GENERATIONS = 3

Place = tuple[CodeType, int, dict[str, Any]]
_PLACE = attrgetter("f_code", "f_lasti", "f_globals")


def places_below(frame: FrameType | None, most: int) -> list[Place]:
    """Where `frame` and its callers stand, at most so many; one call into C, in which no other thread can take over."""
    places: list[Place] = []
    callers: Iterator[Any] = accumulate(repeat("f_back"), getattr, initial=frame)
    with suppress(AttributeError):  # the caller of the first frame is None, which has no code
        places.extend(islice(map(_PLACE, callers), most))
    return places


class KeptCollection(NamedTuple):
    """A collection, before anything is named. `duration_ns` is that of all that it stands for."""

    time_ns: int
    generation: int
    stands_for: int
    duration_ns: int
    ident: int
    thread: threading.Thread | None
    places: list[Place]
    truncated: bool
    context: Any | None
    labels: Any | None


@dataclass(slots=True)
class _Uncounted:
    """Collections of one generation that none that was kept stands for yet."""

    count: int = 0
    duration_ns: int = 0
    kept_ns: int = 0


def _nothing() -> None:
    """The thread has none."""


class CollectionLog:
    """Keeps one collection in a while of each generation, with the stack of its thread.

    Args:
        context_here: the context of the calling thread.
        labels_here: its labels.
        max_depth: frames kept of a stack.
        distance_ns: between two collections of one generation that are kept.
        monotonic_ns: the clock.
    """

    def __init__(
        self,
        context_here: Callable[[], Any | None] = _nothing,
        labels_here: Callable[[], Any | None] = _nothing,
        max_depth: int = 1024,
        distance_ns: int = COLLECTION_DISTANCE_NS,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._context_here = context_here
        self._labels_here = labels_here
        self._max_depth = max_depth
        self._distance_ns = distance_ns
        self._now_ns = monotonic_ns
        self._get_ident = real_get_ident()
        self._active = living_threads()
        self._uncounted = [_Uncounted() for _ in range(_GENERATIONS)]
        self._kept: deque[KeptCollection] = deque()
        self._began_ns = 0
        self._closed = False
        self._failure: Exception | None = None

    def note(self, phase: str, info: dict[str, Any]) -> None:
        """What the collector calls. What goes wrong is kept for `drain`: a log line is not for such a place."""
        try:
            if phase == "start":
                self._began_ns = self._now_ns()
            else:
                self._note_end(info.get("generation", -1), self._now_ns())
        except Exception as error:
            self._failure = error

    def close(self) -> None:
        """Keep none any more."""
        self._closed = True

    def drain(self) -> Iterator[KeptCollection]:
        """Those that were kept, oldest first.

        Raises:
            Exception: what has gone wrong in `note`, once.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        for _ in range(len(self._kept)):
            yield self._kept.popleft()

    def _note_end(self, generation: int, now_ns: int) -> None:
        began_ns, self._began_ns = self._began_ns, 0
        if self._closed or not began_ns or not 0 <= generation < _GENERATIONS:
            return
        uncounted = self._uncounted[generation]
        uncounted.count += 1
        uncounted.duration_ns += now_ns - began_ns
        room = _MOST_KEPT - _FOR_LONG if now_ns - began_ns < _LONG_NS else _MOST_KEPT
        if now_ns - uncounted.kept_ns < self._distance_ns or len(self._kept) >= room:
            return
        places = places_below(sys._getframe(1).f_back, self._max_depth + 1)  # below `note` is what the collector met
        if not places:
            return
        ident = self._get_ident()
        self._kept.append(
            KeptCollection(
                time.time_ns(),
                generation,
                uncounted.count,
                uncounted.duration_ns,
                ident,
                self._active.get(ident),
                places[: self._max_depth],
                len(places) > self._max_depth,
                self._context_here(),
                self._labels_here(),
            )
        )
        self._uncounted[generation] = _Uncounted(kept_ns=now_ns)
