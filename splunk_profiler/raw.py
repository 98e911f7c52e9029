"""Data that capture's recorder gets from walkers and event sources, and the periods of captures.

The native walker creates these named tuples. Its import fails if it was built for other fields.
Imports the model only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread as PythonThread
from typing import Any, NamedTuple

from splunk_profiler.model import Event

STATE_READY, STATE_RUNNING, STATE_WANTS_GIL = 1, 2, 3  # see `RawThread.state`
_MAX_BASE_NS = 1_000_000_000
_MAX_PERIOD_NS = 60_000_000_000


class RawThread(NamedTuple):
    """One thread as the interpreter knew it at the capture.

    Attributes:
        key: unique number of the thread, never reused.
        ident: `threading` ident, which may be reused.
        native_id: id from the kernel; 0 if not known.
        stack: a `Stack`, or another result of the walker's `make_stack`.
        labels: value of the labels' variable; None if it has none.
        cpu_ns: CPU time at the deadline, or at the capture if the thread is new; 0 if not known.
        state: `STATE_RUNNING` if it had a processor at the deadline; `STATE_READY` if it waited for one, or
            held the GIL only at the capture; `STATE_WANTS_GIL` if it had none and waited for the GIL at the
            capture, which CPython tells from 3.15 on; 0 if it waited for something else; None if not known.
            The portable walker knows only the state of the capturing thread.
        python_thread: None if there is none, or if the stack has not changed.
    """

    key: int
    ident: int
    native_id: int
    stack: Any
    context: Any | None
    labels: Any | None
    cpu_ns: int = 0
    state: int | None = None
    python_thread: PythonThread | None = None


class RawSnapshot(NamedTuple):
    """All threads at one instant, oldest thread first.

    Attributes:
        time_ns: time of the capture since the epoch.
        latency_ns: time from the deadline to the capture.
        period_ns: time since the previous deadline of its kind; 0 without a deadline.
        is_focused: True if only threads of the traces in the trace filter were captured.
        since_previous_ns: time since the previous capture; 0 for the first. Focused captures that
            found no thread count, although they are not in the ring.
        process_cpu_ns: CPU time of the process, read before that of its threads.
        instant_ns: time of the capture on the boot-time clock.
        gil_wait_ns: time that the ticker waited until a thread took the snapshot, deadlines that passed
            meanwhile included. Of the portable ticker: how late it is for any reason.
        lost_count: snapshots before it that were lost, because the ring was not drained.
        quiet_count: if not 0, this is no capture. At so many deadlines, `period_ns` apart, no thread had run since
            the previous capture: all were as they are there. The times are those of the last of these deadlines.
    """

    time_ns: int
    latency_ns: int
    threads: Sequence[RawThread]
    period_ns: int
    is_focused: bool
    since_previous_ns: int
    process_cpu_ns: int = 0
    instant_ns: int = 0
    gil_wait_ns: int = 0
    lost_count: int = 0
    quiet_count: int = 0


class RecordedEvent(NamedTuple):
    """An event as a walker recorded it: a collection of garbage, an exception, an allocation, a blocked event loop.

    Attributes:
        time_ns: time since the epoch: the end of a collection, the last instant at which a loop was seen blocked.
        thread: the thread, with the stack at that place.
        event_count: estimated number of events that it stands for; 0 for the rest of a block that was drained before.
        event_amount: their nanoseconds or bytes.
        live_id: number of an allocated block if that is in use, until the drain that has this number as one that has
            ended; else 0.
        details: the generation of a collection, 0 to 2; the class of an exception; of a loop, the names of its task
            and coroutine. None where there is none.
    """

    time_ns: int
    thread: RawThread
    event_count: int
    event_amount: int
    live_id: int
    details: tuple[Any, Any]


class TickerCounters(NamedTuple):
    """Counters of a ticker since it was made.

    Attributes:
        by_pending_call: snapshots taken by a thread of the application, in a pending call.
        missed: deadlines without a snapshot; an undrained ring accepts no more than twice its size.
        gil_held_ns_sum: time inside captures, with the GIL held.
        allocations_lost: sampled allocations without room; their weight is missing.
        live_evicted: sampled blocks in use that are no longer followed, as there were too many.
        live_forgotten: those of which the end may have been missed, as another library had removed the hooks.
        hooks_refused: drains at which the hooks of the allocators were gone and could not be added again.
        event_ns_sum: time inside captures of events, on the threads on which they happen.
        look_ns_sum: time inside looks at event loops.
    """

    due: int = 0
    captured: int = 0
    by_pending_call: int = 0
    missed: int = 0
    gil_held_ns_sum: int = 0
    allocations_lost: int = 0
    live_evicted: int = 0
    live_forgotten: int = 0
    hooks_refused: int = 0
    event_ns_sum: int = 0
    look_ns_sum: int = 0


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class RawEvent:
    """An event as its source (`capture.events`) recorded it.

    Attributes:
        time_ns: nanoseconds since the epoch.
        labels: further labels of the sample, perhaps many distinct ones, under reserved names.
        live_id: number of what it has allocated, until a `FreedBlocksRecord` has that; else 0.
    """

    time_ns: int
    thread: RawThread
    event: Event
    labels: tuple[tuple[str, str], ...] = ()
    live_id: int = 0


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """The selected traces, whose threads are also captured in between: in focused captures.

    Attributes:
        traces: trace ids as keys; changed in single operations, on any thread. Read at each tick.
        span_key: key of the span in a context.
        trace_of: returns the trace id of a context's span, or 0.
    """

    traces: dict[int, Any]
    span_key: str
    trace_of: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of the two kinds of deadlines; 0: there are none."""

    all_ns: int
    focused_ns: int = 0

    @property
    def is_all_threads_base(self) -> bool:
        """True if deadlines of all threads are frequent enough to measure the cost of both kinds."""
        return self.all_ns > 0 and (not self.focused_ns or self.all_ns <= _MAX_BASE_NS)

    @property
    def base_ns(self) -> int:
        """The period that the overhead limit changes; both kinds follow in its ratio.

        It is the period of all threads, at most a second beside focused deadlines, or the only period.
        """
        if self.is_all_threads_base or not self.all_ns:
            return self.all_ns or self.focused_ns
        return _MAX_BASE_NS

    @property
    def min_focused_ns(self) -> int:
        """The shortest time between two captures of a filtered trace: captures of all threads serve it as well."""
        return min(self.base_ns, self.focused_ns)

    def stretched(self, base_ns: int) -> Periods:
        """Return both periods in the ratio of `base_ns` to the current base.

        Where all threads are not the base, their period is at most a minute.
        """
        if not self.all_ns:
            return Periods(0, base_ns)
        all_ns = base_ns
        if not self.is_all_threads_base:
            all_ns = max(self.all_ns, min(self.all_ns * base_ns // self.base_ns, _MAX_PERIOD_NS))
        focused_ns = self.focused_ns * base_ns // self.base_ns
        return Periods(all_ns, min(focused_ns, max(all_ns, self.focused_ns)))  # a longer one would never come due
