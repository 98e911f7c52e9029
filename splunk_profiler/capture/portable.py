"""The portable walker: the contract of the native ticker in pure Python, on `sys._current_frames`.

Serves where the extension is missing. A walk can be interrupted between two threads. A thread's
context comes from a callable, which misses copied contexts, instead of the interpreter. The
ticker runs on its own thread. Must not import the settings or OpenTelemetry.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import Any

from splunk_profiler.capture.frames import (
    CodeLocation,
    ThreadWalk,
    TopFrame,
    collect_locations,
    gc_disabled,
    has_other_interpreters,
    top_frames,
)
from splunk_profiler.capture.portable_gc import CollectionLog
from splunk_profiler.capture.schedule import Schedule
from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import (
    STATE_RUNNING,
    Periods,
    RawSnapshot,
    RawThread,
    RecordedEvent,
    TickerCounters,
    TraceFilter,
)
from splunk_profiler.system import clocks
from splunk_profiler.system.gil import is_gil_enabled
from splunk_profiler.system.threads import WakeEvent, active_threads, cpu_ns_or_zero, real_get_ident

_MAX_CACHED_FRAMES = 16_384
_MAX_WALK_ATTEMPTS = 3
_MAX_ENDED_THREADS = 1024

_Stacks = dict[int, tuple[list[tuple[CodeType, int]], Stack]]  # thread key → code and offset of each frame, stack


class _ThreadKeys:
    """Unique keys of threads. A reused ident with another `Thread` object is a new thread."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[int, threading.Thread | None]] = {}
        # The last threads that ended: an event may be older than several pending snapshots.
        self._ended: dict[int, tuple[int, weakref.ref[threading.Thread] | None]] = {}
        self._last_key = 0

    def key(self, ident: int, thread: threading.Thread | None) -> int:
        """Return the key of a thread, a new one at first sight."""
        entry = self._live.get(ident)
        if entry is None or entry[1] is not thread:
            self._last_key += 1
            entry = self._live[ident] = (self._last_key, thread)
        return entry[0]

    def find_key(self, ident: int, thread: threading.Thread | None) -> int:
        """Return the key, on another thread than the ticker's; a negative one without a snapshot so far."""
        entry = self._live.get(ident)
        if entry is not None and entry[1] is thread:
            return entry[0]
        key, thread_ref = self._ended.get(ident, (-ident, None))
        return key if (None if thread_ref is None else thread_ref()) is thread else -ident

    def keep_only(self, idents: Any) -> None:
        """Move all threads but these to the ended ones."""
        for ident in self._live.keys() - idents:
            key, thread = self._live.pop(ident)
            self._ended.pop(ident, None)
            self._ended[ident] = key, None if thread is None else weakref.ref(thread)
        while len(self._ended) > _MAX_ENDED_THREADS:
            self._ended.pop(next(iter(self._ended)))


class PortableTicker:
    """A ticker with the methods of `Ticker` in ``_walker.pyi``, of the same meaning."""

    def __init__(
        self,
        *,
        context_of: Callable[[int], Any | None],
        max_depth: int,
        make_frame: Callable[[CodeType, int, dict[str, Any]], Frame],
        make_stack: Callable[[tuple[Frame, ...], bool], Stack],
        ring_size: int,
        labels_of: Callable[[int], Any | None] | None = None,
        collections: CollectionLog | None = None,
        trace_filter: TraceFilter | None = None,
    ) -> None:
        self._get_ident = real_get_ident()
        self._context_of = context_of
        self._labels_of = labels_of
        self._collections = collections or CollectionLog()
        self.on_gc_event = self._collections.on_collection  # not wrapped: it runs in the collector
        self._max_depth = max_depth
        self._trace_filter = trace_filter
        self._may_have_traces = False  # in the trace filter
        self._last_capture_ns = 0
        self._make_frame = make_frame
        self._make_stack = make_stack
        self._ring: deque[RawSnapshot] = deque(maxlen=ring_size)
        self._counters = TickerCounters()
        self._thread_keys = _ThreadKeys()
        self._previous: _Stacks = {}
        self._frames: dict[tuple[int, int], tuple[CodeType, Frame]] = {}
        self._filled = WakeEvent()
        self._wake = WakeEvent()
        self._resume = WakeEvent()
        self._stopped = False
        self._periods = Periods(0, 0)
        self._has_full_captures = True

    def run(self, period_ns: int, focused_period_ns: int = 0, phase_ns: int = 0) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread."""
        self.set_periods(period_ns, focused_period_ns)
        schedule = Schedule(clocks.monotonic_ns() - phase_ns, self._periods)
        while not self._stopped:
            now = clocks.monotonic_ns()
            schedule.set_periods(self._periods, now)
            wait_ns = schedule.next_deadline_ns(now, has_traces=self._may_have_traces) - now
            if wait_ns > 0:
                self._wake.wait(min(wait_ns / 1e9, threading.TIMEOUT_MAX))
                continue
            tick = schedule.pop_tick(now)
            self._count(due=tick.skipped + 1, missed=tick.skipped)
            late_ns = now - tick.deadline_ns
            # Being late for another reason than the GIL counts too: this ticker cannot tell.
            self._capture(
                late_ns,
                tick.period_ns,
                is_focused=tick.is_focused,
                gil_wait_ns=late_ns + tick.skipped * tick.period_ns,
            )

    def set_periods(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Change the periods of a running ticker; from any thread."""
        self._periods = Periods(period_ns, focused_period_ns)
        self._has_full_captures = period_ns > 0
        self._wake.set()

    def notify_trace_added(self) -> None:
        """Announce that a trace was added to the trace filter."""
        if not self._may_have_traces:
            self._may_have_traces = True
            self._wake.set()

    def stop(self) -> None:
        """Make `run` and `drain` return, for good. Idempotent; safe from any thread."""
        self._stopped = True
        self._collections.close()
        self._wake.set()
        self._filled.set()
        self._resume.set()

    def capture(self, *, is_focused: bool = False) -> None:
        """Take one snapshot into the ring, on the calling thread."""
        self._capture(0, 0, is_focused=is_focused)

    def drain(self, timeout_ns: int, pause_ns: int = 0) -> list[RawSnapshot]:
        """Return the ring, oldest first: after `pause_ns`, and up to `timeout_ns` more while it is empty."""
        if pause_ns > 0 and not self._stopped:
            self._resume.wait(pause_ns / 1e9)
        if not self._ring and not self._stopped:
            self._filled.wait(timeout_ns / 1e9)
        drained: list[RawSnapshot] = []
        while self._ring:
            drained.append(self._ring.popleft())
        return drained

    def drain_collections(self) -> list[RecordedEvent]:
        """Return the kept collections, oldest first; raise the last error of recording them."""
        drained = []
        for kept in self._collections.drain():
            walk, native_id = kept.walk, _native_id(kept.thread)
            key = self._thread_keys.find_key(walk.ident, kept.thread)
            stack = self._make_stack(self._resolve_frames(walk), walk.truncated)
            thread = RawThread(
                key, walk.ident, native_id, stack, walk.context, walk.labels, 0, STATE_RUNNING, kept.thread
            )
            counts = kept.collection_count, kept.duration_ns
            drained.append(RecordedEvent(kept.time_ns, thread, *counts, live_id=0, details=(kept.generation, None)))
        return drained

    def counters(self) -> TickerCounters:
        """Return the counters since the ticker was made."""
        return self._counters

    def _capture(self, late_ns: int, period_ns: int, *, is_focused: bool, gil_wait_ns: int = 0) -> None:
        if not is_gil_enabled() or has_other_interpreters():
            self._count(missed=1)
            return
        started_ns = clocks.monotonic_ns()
        since_previous_ns = started_ns - self._last_capture_ns if self._last_capture_ns else 0
        self._last_capture_ns = started_ns
        if is_focused and not self._has_traces():
            self._count(captured=1, held_ns=clocks.monotonic_ns() - started_ns)
            return
        before = active_threads().copy()
        now, instant, walks = self._walk(is_focused=is_focused)
        if is_focused and not walks:
            self._count(captured=1, held_ns=clocks.monotonic_ns() - started_ns)
            return
        living = active_threads().copy()
        # A thread that started or ended during the walk cannot be identified by its ident.
        walks = [walk for walk in walks if before.get(walk.ident) is living.get(walk.ident)]
        process_cpu_ns = time.process_time_ns()  # before the threads' clocks: see `ThreadTimes`
        previous = self._previous
        if not (is_focused and self._has_full_captures):  # else others keep their stack until the next full capture
            self._previous = {}
        threads = [self._resolve_thread(walk, living.get(walk.ident), previous) for walk in walks]
        threads.sort(key=lambda raw: raw.key)
        # In one step: another thread may drain the ring meanwhile.
        dropped = list(self._ring)[:1] if len(self._ring) == self._ring.maxlen else []
        self._ring.append(
            RawSnapshot(
                now,
                late_ns,
                tuple(threads),
                period_ns,
                is_focused,
                since_previous_ns,
                process_cpu_ns,
                instant,
                gil_wait_ns,
                sum(each.lost_count + 1 for each in dropped),
            )
        )
        self._count(captured=1, held_ns=clocks.monotonic_ns() - started_ns)
        self._filled.set()

    def _has_traces(self) -> bool:
        """Return True if the trace filter has traces; else pause focused ticks until `notify_trace_added`."""
        self._may_have_traces = False  # first, so that a trace added from now on sets it again
        if self._trace_filter is not None and self._trace_filter.traces:
            self._may_have_traces = True
        return self._may_have_traces

    def _is_in_filter(self, ident: int) -> bool:
        context, trace_filter = self._context_of(ident), self._trace_filter
        if context is None or trace_filter is None:
            return False
        return trace_filter.trace_of(context) in trace_filter.traces

    def _walk(self, *, is_focused: bool) -> tuple[int, int, list[ThreadWalk]]:
        """Walk all threads, or those in the filter; return time and instant (boot-time clock) and them, oldest first.

        If this thread has held the GIL for too long, the application runs in the middle of a walk.
        Then a stack would be joined to the context of another moment. So each thread is checked
        again, and all are walked again if one has moved. A thread that moves in each attempt is
        left out; each such attempt takes a stall.
        """
        for _ in range(_MAX_WALK_ATTEMPTS):
            with gc_disabled(), top_frames() as tops:
                now, instant = time.time_ns(), clocks.boottime_ns()
                walks = [
                    self._walk_thread(ident, top)
                    for ident, top in reversed(tops.items())  # these are newest first
                    if not is_focused or self._is_in_filter(ident)
                ]
                moved = self._find_moved(tops, walks)
                self._thread_keys.keep_only(tops.keys())
            if not moved:
                break
        return now, instant, [walk for walk in walks if walk.ident not in moved]

    def _walk_thread(self, ident: int, top: TopFrame) -> ThreadWalk:
        locations = [top.location, *collect_locations(top.caller, self._max_depth)]
        truncated = len(locations) > self._max_depth
        return ThreadWalk(ident, locations[: self._max_depth], truncated, *self._marks_of(ident))

    def _marks_of(self, ident: int) -> tuple[Any | None, Any | None]:
        return self._context_of(ident), None if self._labels_of is None else self._labels_of(ident)

    def _find_moved(self, tops: dict[int, TopFrame], walks: list[ThreadWalk]) -> set[int]:
        """Return the idents of threads that have run since they were walked, except the calling one."""
        moved = set()
        with top_frames() as later_tops:
            for ident, _, _, context, labels in walks:
                now_context, now_labels = self._marks_of(ident)
                is_unchanged = now_context is context and now_labels is labels
                if not (is_unchanged and tops[ident].is_at_same_location(later_tops.get(ident))):
                    moved.add(ident)
        return moved - {self._get_ident()}

    def _resolve_thread(self, walk: ThreadWalk, thread: threading.Thread | None, previous: _Stacks) -> RawThread:
        key = self._thread_keys.key(walk.ident, thread)
        stack, native_id = self._resolve_stack(key, walk, previous), _native_id(thread)
        state = STATE_RUNNING if walk.ident == self._get_ident() else None
        cpu_ns = cpu_ns_or_zero(native_id)
        return RawThread(key, walk.ident, native_id, stack, walk.context, walk.labels, cpu_ns, state, thread)

    def _resolve_stack(self, key: int, walk: ThreadWalk, previous: _Stacks) -> Stack:
        before = previous.get(key)
        if before is not None and _is_same_stack(before[0], walk.locations):
            self._previous[key] = before
            return before[1]
        stack = self._make_stack(self._resolve_frames(walk), walk.truncated)
        self._previous[key] = ([location[:2] for location in walk.locations], stack)
        return stack

    def _resolve_frames(self, walk: ThreadWalk) -> tuple[Frame, ...]:
        return tuple(self._resolve_frame(*location) for location in walk.locations)

    def _resolve_frame(self, code: CodeType, lasti: int, module_globals: dict[str, Any]) -> Frame:
        entry = self._frames.get((id(code), lasti))
        if entry is not None:
            return entry[1]
        if len(self._frames) >= _MAX_CACHED_FRAMES:
            self._frames.clear()
        frame = self._make_frame(code, lasti, module_globals)
        self._frames[id(code), lasti] = (code, frame)  # a reference to the code keeps its id from being reused
        return frame

    def _count(self, *, held_ns: int = 0, **counts: int) -> None:
        before = self._counters
        self._counters = before._replace(
            gil_held_ns_sum=before.gil_held_ns_sum + held_ns,
            **{name: getattr(before, name) + count for name, count in counts.items()},
        )


def _native_id(thread: threading.Thread | None) -> int:
    return 0 if thread is None else vars(thread).get("_native_id") or 0


def _is_same_stack(before: list[tuple[CodeType, int]], now: list[CodeLocation]) -> bool:
    """Return True if the locations are equal; code is compared by identity, since by value is slow."""
    return len(before) == len(now) and all(a[0] is b[0] and a[1] == b[1] for a, b in zip(before, now, strict=True))
