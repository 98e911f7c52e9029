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

from splunk_profiler.capture.portable_gc import CodeLocation, CollectionLog, collect_locations
from splunk_profiler.capture.schedule import Schedule, TraceFilter
from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import STATE_RUNNING, Periods, RawCollection, RawSnapshot, RawThread, TickerCounters
from splunk_profiler.system.threads import WakeEvent, active_threads, cpu_ns_or_zero

_MAX_CACHED_FRAMES = 16_384
_MAX_WALK_ATTEMPTS = 3
_MAX_ENDED_THREADS = 1024


_LOCATION_AND_CALLER = attrgetter("f_code", "f_lasti", "f_globals", "f_back")


class _TopFrame(NamedTuple):
    """The frame a thread runs in. `frame` is only compared: it may not outlive the moment (`_top_frames`)."""

    frame: FrameType
    location: CodeLocation
    caller: FrameType | None

    def is_at_same_location(self, other: _TopFrame | None) -> bool:
        """Whether both are the same frame, at the same instruction."""
        return other is not None and self.frame is other.frame and self.location[1] == other.location[1]


class _ThreadWalk(NamedTuple):
    """The places and the context of one thread, before anything is named."""

    ident: int
    locations: list[CodeLocation]
    truncated: bool
    context: Any | None
    labels: Any | None


def is_gil_enabled() -> bool:
    """True if one thread at a time runs Python. A free-threaded build may turn the GIL on, and does so for imports."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # CPython 3.13
    return enabled is None or enabled()


def _has_other_interpreters() -> bool:
    """Whether there are interpreters that may run without our GIL (CPython 3.12).

    `sys._current_frames` makes frame objects for their threads as well, while these run: a crash. So nothing is
    captured as long as they are there. Those of C programs, which load no module for it, share our GIL as a rule.
    """
    if sys.version_info < (3, 12):
        return False
    module: Any = sys.modules.get("_interpreters") or sys.modules.get("_xxsubinterpreters")
    return module is not None and len(module.list_all()) > 1


@contextmanager
def gc_disabled() -> Iterator[None]:
    """CPython 3.11 may collect garbage while it makes a frame object, and a finaliser then let the thread go on
    whose frame it is, until that is gone: a crash. Or a `threading.local` goes, which takes the lock that is held for
    the frames of all threads: a wait without end. Later versions collect between two instructions only, earlier ones
    make no object here.
    """
    must_disable = sys.version_info[:2] == (3, 11) and gc.isenabled()
    if must_disable:
        gc.disable()
    try:
        yield
    finally:
        if must_disable:
            gc.enable()


def _top_frames() -> dict[int, _TopFrame]:
    """Each thread's top frame, and where it stands.

    CPython 3.11 makes a frame object even for a frame that is being left, and does not tell that object when
    the frame is gone: to read it after its thread has run is to read freed memory. So it is asked for and
    read within one call into C, in which no thread can take over. The other versions do not mind.
    """
    kept: dict[str, dict[int, FrameType]] = {}
    frame_maps = map(kept.setdefault, ["frames"], iter(sys._current_frames, None))
    rows = list(map(_LOCATION_AND_CALLER, chain.from_iterable(map(dict.values, frame_maps))))
    return {
        ident: _TopFrame(frame, (code, lasti, module_globals), caller)
        for (ident, frame), (code, lasti, module_globals, caller) in zip(kept["frames"].items(), rows, strict=True)
    }


class Clock(Protocol):
    """Monotonic time and the time of day, both in nanoseconds."""

    def monotonic_ns(self) -> int: ...
    def time_ns(self) -> int: ...


def _no_labels(_ident: int) -> None:
    """No thread has labels."""


class _ThreadKeys:
    """A key for each life of a thread: an ident that comes back with another `Thread` object is a new thread."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[int, threading.Thread | None]] = {}
        # Those that went last: snapshots may wait to be handled, and an event be older than several of them.
        self._ended: dict[int, tuple[int, weakref.ref[threading.Thread] | None]] = {}
        self._last_key = 0

    def key(self, ident: int, thread: threading.Thread | None) -> int:
        entry = self._live.get(ident)
        if entry is None or entry[1] is not thread:
            self._last_key += 1
            entry = self._live[ident] = (self._last_key, thread)
        return entry[0]

    def find_key(self, ident: int, thread: threading.Thread | None) -> int:
        """The key, from another thread than the ticker's; of one that has been in no snapshot, a negative number."""
        entry = self._live.get(ident)
        if entry is not None and entry[1] is thread:
            return entry[0]
        key, thread_ref = self._ended.get(ident, (-ident, None))
        return key if (None if thread_ref is None else thread_ref()) is thread else -ident

    def keep_only(self, idents: Any) -> None:
        for ident in self._live.keys() - idents:
            key, thread = self._live.pop(ident)
            self._ended.pop(ident, None)
            self._ended[ident] = key, None if thread is None else weakref.ref(thread)
        while len(self._ended) > _MAX_ENDED_THREADS:
            self._ended.pop(next(iter(self._ended)))


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
        labels_of: Callable[[int], Any | None] = _no_labels,
        collections: CollectionLog | None = None,
        trace_filter: TraceFilter | None = None,
        clock: Clock = time,
    ) -> None:
        self._context_of = context_of
        self._labels_of = labels_of
        self._collections = CollectionLog() if collections is None else collections
        self.on_gc_event = self._collections.on_collection  # not a method around it: less to be run by the collector
        self._max_depth = max_depth
        self._trace_filter = trace_filter
        self._is_focus_active = False  # there may be traces in the focus
        self._last_capture_ns = 0
        self._make_frame = make_frame
        self._make_stack = make_stack
        self._clock = clock
        self._ring: deque[RawSnapshot] = deque(maxlen=ring_size)
        self._counters = TickerCounters()
        self._thread_keys = _ThreadKeys()
        self._previous: dict[int, tuple[list[tuple[CodeType, int]], Stack]] = {}
        self._frames: dict[tuple[int, int], tuple[CodeType, Frame]] = {}
        self._filled = WakeEvent()
        self._wake = WakeEvent()
        self._stopped = False
        self._periods = Periods(0, 0)
        self._has_full_captures = True  # there are captures of all threads, too

    def run(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread."""
        self._set_periods(period_ns, focused_period_ns)
        schedule = Schedule(self._clock.monotonic_ns(), self._periods)
        while not self._stopped:
            now = self._clock.monotonic_ns()
            schedule.set_periods(self._periods, now)
            wait_ns = schedule.next_deadline_ns(now, is_focus_active=self._is_focus_active) - now
            if wait_ns > 0:
                self._wake.wait(min(wait_ns / 1e9, threading.TIMEOUT_MAX))
                continue
            tick = schedule.pop_tick(now)
            self._count(due=tick.skipped + 1, missed=tick.skipped)
            self._capture(now - tick.deadline_ns, tick.period_ns, is_focused=tick.is_focused)

    def set_periods(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Let a running ticker go on as if it ran with these; from any thread."""
        self._set_periods(period_ns, focused_period_ns)
        self._wake.set()

    def notify_trace_added(self) -> None:
        """A trace was added to the focus."""
        if not self._is_focus_active:
            self._is_focus_active = True
            self._wake.set()

    def stop(self) -> None:
        """Make `run` and `drain` return; from any thread, and twice. A stopped ticker stays stopped."""
        self._stopped = True
        self._collections.close()
        self._wake.set()
        self._filled.set()

    def capture(self, *, is_focused: bool = False) -> None:
        """Take one snapshot now, in this thread, into the ring."""
        self._capture(0, 0, is_focused=is_focused)

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
            stack = self._make_stack(
                tuple(self._resolve_frame(*location) for location in kept.locations), kept.truncated
            )
            key = self._thread_keys.find_key(kept.ident, kept.thread)
            native_id = _native_id(kept.thread)
            thread = RawThread(
                key, kept.ident, native_id, stack, kept.context, kept.labels, 0, STATE_RUNNING, kept.thread
            )
            drained.append(
                RawCollection(kept.time_ns, thread, kept.generation, kept.collection_count, kept.duration_ns)
            )
        return drained

    def counters(self) -> TickerCounters:
        """What has happened since the ticker was made."""
        return self._counters

    def _capture(self, late_ns: int, period_ns: int, *, is_focused: bool) -> None:
        if not is_gil_enabled() or _has_other_interpreters():
            self._count(missed=1)
            return
        started_ns = self._clock.monotonic_ns()
        since_previous_ns = started_ns - self._last_capture_ns if self._last_capture_ns else 0
        self._last_capture_ns = started_ns
        if is_focused and not self._update_focus_active():
            self._count(captured=1, held_ns=self._clock.monotonic_ns() - started_ns)
            return
        before = active_threads().copy()
        now, walks = self._walk(is_focused=is_focused)
        if is_focused and not walks:
            self._count(captured=1, late_ns=late_ns, held_ns=self._clock.monotonic_ns() - started_ns)
            return
        living = active_threads().copy()
        # A walk takes a while: one that has come or gone meanwhile cannot be told by its ident.
        walks = [walk for walk in walks if before.get(walk.ident) is living.get(walk.ident)]
        process_cpu_ns = time.process_time_ns()  # before the threads' clocks: see `ThreadTimes`
        threads, own_ident = [], threading.get_ident()
        previous = self._previous
        if not (is_focused and self._has_full_captures):  # else the others keep theirs until the next capture of all
            self._previous = {}
        for walk in walks:
            thread = living.get(walk.ident)
            key = self._thread_keys.key(walk.ident, thread)
            stack = self._resolve_stack(key, walk, previous)
            native_id = _native_id(thread)
            state = STATE_RUNNING if walk.ident == own_ident else None
            threads.append(
                RawThread(
                    key,
                    walk.ident,
                    native_id,
                    stack,
                    walk.context,
                    walk.labels,
                    cpu_ns_or_zero(native_id),
                    state,
                    thread,
                )
            )
        threads.sort(key=lambda raw: raw.key)
        overwritten = int(len(self._ring) == self._ring.maxlen)
        self._ring.append(
            RawSnapshot(now, late_ns, tuple(threads), period_ns, is_focused, since_previous_ns, process_cpu_ns)
        )
        self._count(
            captured=1, overwritten=overwritten, late_ns=late_ns, held_ns=self._clock.monotonic_ns() - started_ns
        )
        self._filled.set()

    def _set_periods(self, period_ns: int, focused_period_ns: int) -> None:
        self._periods = Periods(period_ns, focused_period_ns)
        self._has_full_captures = period_ns > 0

    def _update_focus_active(self) -> bool:
        """Whether there are traces in the focus.

        If not, there are no such ticks until `notify_trace_added` is called.
        """
        self._is_focus_active = False  # first: who adds a trace now, and says so, must not be forgotten
        if self._trace_filter is not None and self._trace_filter.traces:
            self._is_focus_active = True
        return self._is_focus_active

    def _is_in_focus(self, ident: int) -> bool:
        context = self._context_of(ident)
        trace_filter = self._trace_filter
        return (
            context is not None and trace_filter is not None and trace_filter.trace_of(context) in trace_filter.traces
        )

    def _walk(self, *, is_focused: bool) -> tuple[int, list[_ThreadWalk]]:
        """All threads at one instant, or those in the focus, and when that was; oldest first.

        The application runs in the middle of a walk if this thread has held the GIL for too long (the system
        may have put it aside meanwhile): a stack would be joined to the context of another moment. So each
        thread is looked at once more, and all are walked again if one has moved. One that moves every time,
        which takes a stall in each attempt, is left out of this snapshot.
        """
        for _ in range(_MAX_WALK_ATTEMPTS):
            with gc_disabled():
                tops = _top_frames()
                now = self._clock.time_ns()
                walks = [
                    self._walk_thread(ident, top)
                    for ident, top in reversed(tops.items())  # newest first in there
                    if not is_focused or self._is_in_focus(ident)
                ]
                moved = self._find_moved(tops, walks)
            if not moved:
                break
        self._thread_keys.keep_only(tops.keys())
        return now, [walk for walk in walks if walk.ident not in moved]

    def _walk_thread(self, ident: int, top: _TopFrame) -> _ThreadWalk:
        locations, callers = [top.location], collect_locations(top.caller, self._max_depth)
        locations += callers
        truncated = len(locations) > self._max_depth
        return _ThreadWalk(
            ident, locations[: self._max_depth], truncated, self._context_of(ident), self._labels_of(ident)
        )

    def _find_moved(self, tops: dict[int, _TopFrame], walks: list[_ThreadWalk]) -> set[int]:
        """Idents of threads that have run since they were walked; this thread is where it is."""
        later_tops, own_ident = _top_frames(), threading.get_ident()
        return {
            ident
            for ident, _, _, context, labels in walks
            if ident != own_ident
            and not (
                tops[ident].is_at_same_location(later_tops.get(ident))
                and self._context_of(ident) is context
                and self._labels_of(ident) is labels
            )
        }

    def _resolve_stack(
        self, key: int, walk: _ThreadWalk, previous: dict[int, tuple[list[tuple[CodeType, int]], Stack]]
    ) -> Stack:
        before = previous.get(key)
        if before is not None and _is_same_stack(before[0], walk.locations):
            self._previous[key] = before
            return before[1]
        stack = self._make_stack(tuple(self._resolve_frame(*location) for location in walk.locations), walk.truncated)
        self._previous[key] = ([location[:2] for location in walk.locations], stack)
        return stack

    def _resolve_frame(self, code: CodeType, lasti: int, module_globals: dict[str, Any]) -> Frame:
        entry = self._frames.get((id(code), lasti))
        if entry is not None:
            return entry[1]
        if len(self._frames) >= _MAX_CACHED_FRAMES:
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
        self._counters = TickerCounters(
            due=before.due + due,
            captured=before.captured + captured,
            missed=before.missed + missed,
            overwritten=before.overwritten + overwritten,
            latency_ns_max=max(before.latency_ns_max, late_ns),
            latency_ns_sum=before.latency_ns_sum + late_ns,
            gil_held_ns_sum=before.gil_held_ns_sum + held_ns,
        )


def _native_id(thread: threading.Thread | None) -> int:
    return 0 if thread is None else vars(thread).get("_native_id") or 0


def _is_same_stack(before: list[tuple[CodeType, int]], now: list[CodeLocation]) -> bool:
    """Whether both are the same places; codes by identity, since comparing two by value is slow."""
    return len(before) == len(now) and all(a[0] is b[0] and a[1] == b[1] for a, b in zip(before, now, strict=True))
