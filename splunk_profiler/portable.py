"""The portable walker: the contract of the native ticker in pure Python, through `sys._current_frames`.

Serves where the extension cannot be had. A walk can be interrupted between two threads, and the context of
a thread comes from a callable (which is approximate for asyncio) instead of the interpreter. Its ticker runs
on a thread of its own; must not import anything of ours but the model and `threads`.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, islice, repeat
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from splunk_profiler.model import Frame, Stack
from splunk_profiler.threads import Signal

_KNOWN_FRAMES = 16_384
_ATTEMPTS = 3


class RawThread(NamedTuple):
    """One thread as the interpreter knows it. `key` is never reused, `ident` is; `native_id` is 0 if not known."""

    key: int
    ident: int
    native_id: int
    stack: Stack
    context: Any | None


class RawSnapshot(NamedTuple):
    """`time_ns` since the epoch; `latency_ns` from the deadline to the instant of capture; oldest thread first."""

    time_ns: int
    latency_ns: int
    threads: tuple[RawThread, ...]


class Counters(NamedTuple):
    """Since the ticker was made. `late_ns_max` and `late_ns_sum` are over captured ticks."""

    due: int = 0
    captured: int = 0
    by_pending_call: int = 0
    missed: int = 0
    overwritten: int = 0
    late_ns_max: int = 0
    late_ns_sum: int = 0
    held_ns_sum: int = 0


_Place = tuple[CodeType, int, dict[str, Any]]
_PLACE = attrgetter("f_code", "f_lasti", "f_globals")
_PLACE_AND_CALLER = attrgetter("f_code", "f_lasti", "f_globals", "f_back")


class _Top(NamedTuple):
    """The frame a thread runs in. `frame` is only compared: it may not outlive the moment (`_top_frames`)."""

    frame: FrameType
    place: _Place
    back: FrameType | None

    def is_at(self, other: _Top | None) -> bool:
        """Whether both are the same frame, at the same instruction."""
        return other is not None and self.frame is other.frame and self.place[1] == other.place[1]


class _Walk(NamedTuple):
    """The places and the context of one thread, before anything is named."""

    ident: int
    places: list[_Place]
    truncated: bool
    context: Any | None


def _other_interpreters() -> bool:
    """Whether there are interpreters that may run without our GIL (CPython 3.12).

    `sys._current_frames` makes frame objects for their threads as well, while these run: a crash. So nothing is
    captured as long as they are there. Those of C programs, which load no module for it, share our GIL as a rule.
    """
    if sys.version_info < (3, 12):
        return False
    module: Any = sys.modules.get("_interpreters") or sys.modules.get("_xxsubinterpreters")
    return module is not None and len(module.list_all()) > 1


@contextmanager
def no_collection() -> Iterator[None]:
    """CPython 3.11 may collect garbage while it makes a frame object, and a finaliser then let the thread go on
    whose frame it is, until that is gone: a crash. Or a `threading.local` goes, which takes the lock that is held for
    the frames of all threads: a wait without end. Later versions collect between two instructions only, earlier ones
    make no object here.
    """
    wanted = sys.version_info[:2] == (3, 11) and gc.isenabled()
    if wanted:
        gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def _top_frames() -> dict[int, _Top]:
    """Each thread's top frame, and where it stands.

    CPython 3.11 makes a frame object even for a frame that is being left, and does not tell that object when
    the frame is gone: to read it after its thread has run is to read freed memory. So it is asked for and
    read within one call into C, in which no thread can take over. The other versions do not mind.
    """
    kept: dict[str, dict[int, FrameType]] = {}
    asked = map(kept.setdefault, ["frames"], iter(sys._current_frames, None))
    rows = list(map(_PLACE_AND_CALLER, chain.from_iterable(map(dict.values, asked))))
    return {
        ident: _Top(frame, (code, lasti, module_globals), back)
        for (ident, frame), (code, lasti, module_globals, back) in zip(kept["frames"].items(), rows, strict=True)
    }


def _places_below(frame: FrameType | None, most: int) -> list[_Place]:
    """Where `frame` and its callers stand, at most so many; one call into C, for the same reason."""
    places: list[_Place] = []
    callers: Iterator[Any] = accumulate(repeat("f_back"), getattr, initial=frame)
    with suppress(AttributeError):  # the caller of the first frame is None, which has no code
        places.extend(islice(map(_PLACE, callers), most))
    return places


class Clock(Protocol):
    """Monotonic time and the time of day, both in nanoseconds."""

    def monotonic_ns(self) -> int: ...
    def time_ns(self) -> int: ...


class _Identities:
    """A key for each life of a thread: an ident that comes back with another `Thread` object is a new thread."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, threading.Thread | None]] = {}
        self._next = 0

    def key(self, ident: int, thread: threading.Thread | None) -> int:
        known = self._known.get(ident)
        if known is None or known[1] is not thread:
            self._next += 1
            known = self._known[ident] = (self._next, thread)
        return known[0]

    def keep_only(self, idents: Any) -> None:
        for ident in self._known.keys() - idents:
            del self._known[ident]


class PortableTicker:
    """See ``_walker.pyi``: the same methods with the same meaning."""

    def __init__(
        self,
        *,
        context_of: Callable[[int], Any | None],
        max_depth: int,
        make_frame: Callable[[CodeType, int, dict[str, Any]], Frame],
        make_stack: Callable[[tuple[Frame, ...], bool], Stack],
        ring_size: int,
        clock: Clock = time,
    ) -> None:
        self._context_of = context_of
        self._max_depth = max_depth
        self._make_frame = make_frame
        self._make_stack = make_stack
        self._clock = clock
        self._ring: deque[RawSnapshot] = deque(maxlen=ring_size)
        self._counters = Counters()
        self._identities = _Identities()
        self._previous: dict[int, tuple[list[tuple[CodeType, int]], Stack]] = {}
        self._frames: dict[tuple[int, int], tuple[CodeType, Frame]] = {}
        self._filled = Signal()
        self._wake = Signal()
        self._stopped = False

    def run(self, period_ns: int) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread."""
        deadline = self._clock.monotonic_ns() + period_ns
        while not self._stopped:
            ahead = deadline - self._clock.monotonic_ns()
            if ahead > 0:
                self._wake.wait(min(ahead / 1e9, threading.TIMEOUT_MAX))
                continue
            missed = -ahead // period_ns  # after a stall the deadlines in between are given up, not caught up
            self._count(due=missed + 1, missed=missed)
            self._capture(-ahead - missed * period_ns)
            deadline += (missed + 1) * period_ns

    def stop(self) -> None:
        """Make `run` and `drain` return; from any thread, and twice. A stopped ticker stays stopped."""
        self._stopped = True
        self._wake.set()
        self._filled.set()

    def capture(self) -> None:
        """Take one snapshot now, in this thread, into the ring."""
        self._capture(0)

    def drain(self, timeout_ns: int) -> list[RawSnapshot]:
        """What the ring holds, oldest first; waits up to `timeout_ns` while it is empty."""
        if not self._ring and not self._stopped:
            self._filled.wait(timeout_ns / 1e9)
        drained: list[RawSnapshot] = []
        while self._ring:
            drained.append(self._ring.popleft())
        return drained

    def counters(self) -> Counters:
        """What has happened since the ticker was made."""
        return self._counters

    def _capture(self, late_ns: int) -> None:
        if _other_interpreters():
            self._count(missed=1)
            return
        started = self._clock.monotonic_ns()
        now, walks = self._walk()
        living = _living_threads()
        threads = []
        previous, self._previous = self._previous, {}
        for walk in walks:
            thread = living.get(walk.ident)
            key = self._identities.key(walk.ident, thread)
            stack = self._stack(key, walk, previous)
            native_id = (thread.native_id or 0) if thread is not None else 0
            threads.append(RawThread(key, walk.ident, native_id, stack, walk.context))
        threads.sort(key=lambda raw: raw.key)
        overwritten = int(len(self._ring) == self._ring.maxlen)
        self._ring.append(RawSnapshot(now, late_ns, tuple(threads)))
        self._count(captured=1, overwritten=overwritten, late_ns=late_ns, held_ns=self._clock.monotonic_ns() - started)
        self._filled.set()

    def _walk(self) -> tuple[int, list[_Walk]]:
        """All threads at one instant, and when that was; oldest first.

        The application runs in the middle of a walk if this thread has held the GIL for too long (the system
        may have put it aside meanwhile): a stack would be joined to the context of another moment. So each
        thread is looked at once more, and all are walked again if one has moved. One that moves every time,
        which takes a stall in each attempt, is left out of this snapshot.
        """
        for _ in range(_ATTEMPTS):
            with no_collection():
                tops = _top_frames()
                now = self._clock.time_ns()
                walks = [self._places(ident, top) for ident, top in reversed(tops.items())]  # newest first in there
                moved = self._moved(tops, walks)
            if not moved:
                break
        self._identities.keep_only(tops.keys())
        return now, [walk for walk in walks if walk.ident not in moved]

    def _places(self, ident: int, top: _Top) -> _Walk:
        places, below = [top.place], _places_below(top.back, self._max_depth)
        places += below
        truncated = len(places) > self._max_depth
        return _Walk(ident, places[: self._max_depth], truncated, self._context_of(ident))

    def _moved(self, tops: dict[int, _Top], walks: list[_Walk]) -> set[int]:
        """Idents of threads that have run since they were walked; this thread is where it is."""
        again, here = _top_frames(), threading.get_ident()
        return {
            ident
            for ident, _, _, context in walks
            if ident != here and (not tops[ident].is_at(again.get(ident)) or self._context_of(ident) is not context)
        }

    def _stack(self, key: int, walk: _Walk, previous: dict[int, tuple[list[tuple[CodeType, int]], Stack]]) -> Stack:
        before = previous.get(key)
        if before is not None and _same(before[0], walk.places):
            self._previous[key] = before
            return before[1]
        stack = self._make_stack(tuple(self._frame(*place) for place in walk.places), walk.truncated)
        self._previous[key] = ([place[:2] for place in walk.places], stack)
        return stack

    def _frame(self, code: CodeType, lasti: int, module_globals: dict[str, Any]) -> Frame:
        known = self._frames.get((id(code), lasti))
        if known is not None:
            return known[1]
        if len(self._frames) >= _KNOWN_FRAMES:
            self._frames.clear()
        frame = self._make_frame(code, lasti, module_globals)
        self._frames[id(code), lasti] = (code, frame)  # holding the code keeps its id from being given again
        return frame

    def _count(
        self,
        *,
        due: int = 0,
        missed: int = 0,
        captured: int = 0,
        overwritten: int = 0,
        late_ns: int = 0,
        held_ns: int = 0,
    ) -> None:
        before = self._counters
        self._counters = Counters(
            due=before.due + due,
            captured=before.captured + captured,
            missed=before.missed + missed,
            overwritten=before.overwritten + overwritten,
            late_ns_max=max(before.late_ns_max, late_ns),
            late_ns_sum=before.late_ns_sum + late_ns,
            held_ns_sum=before.held_ns_sum + held_ns,
        )


def _same(before: list[tuple[CodeType, int]], now: list[_Place]) -> bool:
    """Whether both are the same places; codes by identity, since comparing two by value is slow."""
    return len(before) == len(now) and all(a[0] is b[0] and a[1] == b[1] for a, b in zip(before, now, strict=True))


def _living_threads() -> dict[int, threading.Thread]:
    # `threading.enumerate` takes a lock that a thread of the application may hold; copying a dict is atomic.
    active: dict[int, threading.Thread] = vars(threading)["_active"]
    return active.copy()
