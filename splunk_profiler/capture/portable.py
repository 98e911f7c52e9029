"""The portable walker: the contract of the native ticker in pure Python, through `sys._current_frames`.

Serves where the extension cannot be had. A walk can be interrupted between two threads, and the context of
a thread comes from a callable (which is approximate for asyncio) instead of the interpreter. Its ticker runs
on a thread of its own; must not import the settings or OpenTelemetry.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from splunk_profiler.capture.portable_gc import CollectionLog, Place, places_below
from splunk_profiler.capture.schedule import Schedule, TraceFilter
from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import RUNS, Periods
from splunk_profiler.system.threads import Signal, cpu_ns_of, living_threads

_KNOWN_FRAMES = 16_384
_ATTEMPTS = 3
_MOST_GONE = 1024


class RawThread(NamedTuple):
    """See ``_walker.pyi``. `state` is only known of the thread that captures; `python_thread` is always there."""

    key: int
    ident: int
    native_id: int
    stack: Stack
    context: Any | None
    labels: Any | None
    cpu_ns: int = 0
    state: int | None = None
    python_thread: threading.Thread | None = None


class RawSnapshot(NamedTuple):
    """See ``_walker.pyi``."""

    time_ns: int
    latency_ns: int
    threads: tuple[RawThread, ...]
    period_ns: int
    focused: bool
    since_ns: int
    process_cpu_ns: int = 0


class RawCollection(NamedTuple):
    """A collection of garbage: when it was over, since the epoch, on which thread, and what else it stands for."""

    time_ns: int
    thread: RawThread
    generation: int
    stands_for: int
    duration_ns: int


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


_PLACE_AND_CALLER = attrgetter("f_code", "f_lasti", "f_globals", "f_back")


class _Top(NamedTuple):
    """The frame a thread runs in. `frame` is only compared: it may not outlive the moment (`_top_frames`)."""

    frame: FrameType
    place: Place
    back: FrameType | None

    def is_at(self, other: _Top | None) -> bool:
        """Whether both are the same frame, at the same instruction."""
        return other is not None and self.frame is other.frame and self.place[1] == other.place[1]


class _Walk(NamedTuple):
    """The places and the context of one thread, before anything is named."""

    ident: int
    places: list[Place]
    truncated: bool
    context: Any | None
    labels: Any | None


def is_gil_on() -> bool:
    """True if one thread at a time runs Python. A free-threaded build may turn the GIL on, and does so for imports."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # CPython 3.13
    return enabled is None or enabled()


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


class Clock(Protocol):
    """Monotonic time and the time of day, both in nanoseconds."""

    def monotonic_ns(self) -> int: ...
    def time_ns(self) -> int: ...


def _nothing(_ident: int) -> None:
    """No thread has labels."""


class _Identities:
    """A key for each life of a thread: an ident that comes back with another `Thread` object is a new thread."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, threading.Thread | None]] = {}
        # Those that went last: snapshots may wait to be handled, and an event be older than several of them.
        self._gone: dict[int, tuple[int, weakref.ref[threading.Thread] | None]] = {}
        self._next = 0

    def key(self, ident: int, thread: threading.Thread | None) -> int:
        known = self._known.get(ident)
        if known is None or known[1] is not thread:
            self._next += 1
            known = self._known[ident] = (self._next, thread)
        return known[0]

    def known_key(self, ident: int, thread: threading.Thread | None) -> int:
        """The key, from another thread than the ticker's; of one that has been in no snapshot, a negative number."""
        known = self._known.get(ident)
        if known is not None and known[1] is thread:
            return known[0]
        key, gone = self._gone.get(ident, (-ident, None))
        return key if (None if gone is None else gone()) is thread else -ident

    def keep_only(self, idents: Any) -> None:
        for ident in self._known.keys() - idents:
            key, thread = self._known.pop(ident)
            self._gone.pop(ident, None)
            self._gone[ident] = key, None if thread is None else weakref.ref(thread)
        while len(self._gone) > _MOST_GONE:
            self._gone.pop(next(iter(self._gone)))


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
        labels_of: Callable[[int], Any | None] = _nothing,
        collections: CollectionLog | None = None,
        focus: TraceFilter | None = None,
        clock: Clock = time,
    ) -> None:
        self._context_of = context_of
        self._labels_of = labels_of
        self._collections = CollectionLog() if collections is None else collections
        self.note_collection = self._collections.note  # not a method around it: less to be run by the collector
        self._max_depth = max_depth
        self._focus = focus
        self._focused = False  # there may be traces in the focus
        self._before_ns = 0
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
        self._periods = Periods(0, 0)
        self._keeps_all = True  # there are captures of all threads, too

    def run(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread."""
        self._set_periods(period_ns, focused_period_ns)
        rhythm = Schedule(self._clock.monotonic_ns(), self._periods)
        while not self._stopped:
            now = self._clock.monotonic_ns()
            rhythm.follow(self._periods, now)
            ahead = rhythm.next_ns(now, focused=self._focused) - now
            if ahead > 0:
                self._wake.wait(min(ahead / 1e9, threading.TIMEOUT_MAX))
                continue
            tick = rhythm.take(now)
            self._count(due=tick.skipped + 1, missed=tick.skipped)
            self._capture(now - tick.deadline_ns, tick.period_ns, focused=tick.focused)

    def pace(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Let a running ticker go on as if it ran with these; from any thread."""
        self._set_periods(period_ns, focused_period_ns)
        self._wake.set()

    def focus(self) -> None:
        """A trace was added to the focus."""
        if not self._focused:
            self._focused = True
            self._wake.set()

    def stop(self) -> None:
        """Make `run` and `drain` return; from any thread, and twice. A stopped ticker stays stopped."""
        self._stopped = True
        self._collections.close()
        self._wake.set()
        self._filled.set()

    def capture(self, *, focused: bool = False) -> None:
        """Take one snapshot now, in this thread, into the ring."""
        self._capture(0, 0, focused=focused)

    def drain(self, timeout_ns: int) -> list[RawSnapshot]:
        """What the ring holds, oldest first; waits up to `timeout_ns` while it is empty."""
        if not self._ring and not self._stopped:
            self._filled.wait(timeout_ns / 1e9)
        drained: list[RawSnapshot] = []
        while self._ring:
            drained.append(self._ring.popleft())
        return drained

    def drain_collections(self) -> list[RawCollection]:
        """The collections that were kept, oldest first; raises what has gone wrong while they were noted."""
        drained = []
        for kept in self._collections.drain():
            stack = self._make_stack(tuple(self._frame(*place) for place in kept.places), kept.truncated)
            key = self._identities.known_key(kept.ident, kept.thread)
            native_id = _native_id(kept.thread)
            thread = RawThread(key, kept.ident, native_id, stack, kept.context, kept.labels, 0, RUNS, kept.thread)
            drained.append(RawCollection(kept.time_ns, thread, kept.generation, kept.stands_for, kept.duration_ns))
        return drained

    def counters(self) -> Counters:
        """What has happened since the ticker was made."""
        return self._counters

    def _capture(self, late_ns: int, period_ns: int, *, focused: bool) -> None:
        if not is_gil_on() or _other_interpreters():
            self._count(missed=1)
            return
        started = self._clock.monotonic_ns()
        since_ns = started - self._before_ns if self._before_ns else 0
        self._before_ns = started
        if focused and not self._has_focus():
            self._count(captured=1, held_ns=self._clock.monotonic_ns() - started)
            return
        before = living_threads().copy()
        now, walks = self._walk(focused=focused)
        if focused and not walks:
            self._count(captured=1, late_ns=late_ns, held_ns=self._clock.monotonic_ns() - started)
            return
        living = living_threads().copy()
        # A walk takes a while: one that has come or gone meanwhile cannot be told by its ident.
        walks = [walk for walk in walks if before.get(walk.ident) is living.get(walk.ident)]
        process_cpu_ns = time.process_time_ns()  # before the threads' clocks: see `ThreadTimes`
        threads, here = [], threading.get_ident()
        previous = self._previous
        if not (focused and self._keeps_all):  # else the others keep theirs until the next capture of all
            self._previous = {}
        for walk in walks:
            thread = living.get(walk.ident)
            key = self._identities.key(walk.ident, thread)
            stack = self._stack(key, walk, previous)
            native_id = _native_id(thread)
            state = RUNS if walk.ident == here else None
            threads.append(
                RawThread(
                    key, walk.ident, native_id, stack, walk.context, walk.labels, cpu_ns_of(native_id), state, thread
                )
            )
        threads.sort(key=lambda raw: raw.key)
        overwritten = int(len(self._ring) == self._ring.maxlen)
        self._ring.append(RawSnapshot(now, late_ns, tuple(threads), period_ns, focused, since_ns, process_cpu_ns))
        self._count(captured=1, overwritten=overwritten, late_ns=late_ns, held_ns=self._clock.monotonic_ns() - started)
        self._filled.set()

    def _set_periods(self, period_ns: int, focused_period_ns: int) -> None:
        self._periods = Periods(period_ns, focused_period_ns)
        self._keeps_all = period_ns > 0

    def _has_focus(self) -> bool:
        """Whether there are traces in the focus; if not, there are no such ticks until `focus` is called."""
        self._focused = False  # first: who adds a trace now, and says so, must not be forgotten
        if self._focus is not None and self._focus.traces:
            self._focused = True
        return self._focused

    def _works_for_one(self, ident: int) -> bool:
        context = self._context_of(ident)
        focus = self._focus
        return context is not None and focus is not None and focus.trace_of(context) in focus.traces

    def _walk(self, *, focused: bool) -> tuple[int, list[_Walk]]:
        """All threads at one instant, or those in the focus, and when that was; oldest first.

        The application runs in the middle of a walk if this thread has held the GIL for too long (the system
        may have put it aside meanwhile): a stack would be joined to the context of another moment. So each
        thread is looked at once more, and all are walked again if one has moved. One that moves every time,
        which takes a stall in each attempt, is left out of this snapshot.
        """
        for _ in range(_ATTEMPTS):
            with no_collection():
                tops = _top_frames()
                now = self._clock.time_ns()
                walks = [
                    self._places(ident, top)
                    for ident, top in reversed(tops.items())  # newest first in there
                    if not focused or self._works_for_one(ident)
                ]
                moved = self._moved(tops, walks)
            if not moved:
                break
        self._identities.keep_only(tops.keys())
        return now, [walk for walk in walks if walk.ident not in moved]

    def _places(self, ident: int, top: _Top) -> _Walk:
        places, below = [top.place], places_below(top.back, self._max_depth)
        places += below
        truncated = len(places) > self._max_depth
        return _Walk(ident, places[: self._max_depth], truncated, self._context_of(ident), self._labels_of(ident))

    def _moved(self, tops: dict[int, _Top], walks: list[_Walk]) -> set[int]:
        """Idents of threads that have run since they were walked; this thread is where it is."""
        again, here = _top_frames(), threading.get_ident()
        return {
            ident
            for ident, _, _, context, labels in walks
            if ident != here
            and not (
                tops[ident].is_at(again.get(ident))
                and self._context_of(ident) is context
                and self._labels_of(ident) is labels
            )
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


def _native_id(thread: threading.Thread | None) -> int:
    return 0 if thread is None else vars(thread).get("_native_id") or 0


def _same(before: list[tuple[CodeType, int]], now: list[Place]) -> bool:
    """Whether both are the same places; codes by identity, since comparing two by value is slow."""
    return len(before) == len(now) and all(a[0] is b[0] and a[1] == b[1] for a, b in zip(before, now, strict=True))
