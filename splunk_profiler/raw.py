"""Data that passes between capture and pipeline: raw snapshots, raw events and the periods they are taken at.

The schema of what the native walker makes, too: it takes the named tuples from here, and is not imported if it was
built for others. Imports the model only.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread as PythonThread
from typing import Any, NamedTuple

from splunk_profiler.model import Event

STATE_RUNNING = 2  # `RawThread.state` of a thread that had a processor
_MAX_BASE_NS = 1_000_000_000
_MAX_PERIOD_NS = 60_000_000_000


class RawThread(NamedTuple):
    """One thread as the interpreter knew it when it was captured.

    Attributes:
        key: never reused.
        ident: `threading`'s, which may be reused.
        native_id: the kernel's; 0 if not known.
        stack: a `Stack`, or whatever else the walker's `make_stack` returns.
        context: OpenTelemetry's; None if it has none.
        labels: the value of the labels' variable; None if it has none.
        cpu_ns: CPU time used at the deadline, or at the capture if the thread was new; 0 if it cannot be read.
        state: `STATE_RUNNING` if it had a processor at the deadline; 1 if it waited for one, or held the GIL at the
            capture and not before; 0 if it waited for something else; None if not known. The portable walker knows that
            of the thread that captures only.
        python_thread: None if there is none, or if the stack is that of the thread's last capture.
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
        time_ns: since the epoch.
        latency_ns: from the deadline to the instant of capture.
        threads: those of the traces in the focus only, if `is_focused`.
        period_ns: the distance of that deadline from the one of its kind before; 0 if it was not taken at one.
        is_focused: it was taken for the focus.
        since_previous_ns: from the capture before, also from one of the focus that found no thread and is not in the
            ring; 0 for the first.
        process_cpu_ns: CPU time of the process, read before that of its threads.
    """

    time_ns: int
    latency_ns: int
    threads: tuple[RawThread, ...]
    period_ns: int
    is_focused: bool
    since_previous_ns: int
    process_cpu_ns: int = 0


class RawCollection(NamedTuple):
    """A collection of garbage.

    Attributes:
        time_ns: when it was over, since the epoch.
        thread: where it ran.
        generation: 0 to 2.
        collection_count: it, and those of its generation since the one that was kept before.
        duration_ns: of all of these.
    """

    time_ns: int
    thread: RawThread
    generation: int
    collection_count: int
    duration_ns: int


class TickerCounters(NamedTuple):
    """What a ticker has done since it was made.

    Attributes:
        due: deadlines that have passed.
        captured: snapshots taken.
        by_pending_call: of these, by whichever thread was running Python.
        missed: deadlines without a snapshot; a ring that nobody drains takes no more than twice its size.
        overwritten: snapshots lost because nobody drained the ring.
        latency_ns_max: over captured ticks.
        latency_ns_sum: over captured ticks.
        gil_held_ns_sum: time inside captures, GIL held.
    """

    due: int = 0
    captured: int = 0
    by_pending_call: int = 0
    missed: int = 0
    overwritten: int = 0
    latency_ns_max: int = 0
    latency_ns_sum: int = 0
    gil_held_ns_sum: int = 0


class ThreadChange(NamedTuple):
    """A thread that is not as it was in the snapshot before.

    Attributes:
        thread: as it is now.
        nice: its nice value; 0 if idle threads are skipped, or it has ended.
        idle_count: in how many snapshots before this one it has been idle.
        idle_ns: the sum of their periods.
    """

    thread: RawThread
    nice: int
    idle_count: int
    idle_ns: int


class IdleSpan(NamedTuple):
    """How long a thread has been idle.

    Attributes:
        key: the thread's.
        idle_count: in how many snapshots.
        idle_ns: the sum of their periods.
    """

    key: int
    idle_count: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event as its source (`capture.events`) has noticed it.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        thread: on which thread, with its stack, context and labels at that moment.
        event: what.
    """

    time_ns: int
    thread: RawThread
    event: Event


@dataclass(frozen=True, slots=True)
class Periods:
    """How far apart deadlines are; 0: there are none.

    Attributes:
        all_ns: those of all threads.
        focused_ns: those of the focus.
    """

    all_ns: int
    focused_ns: int

    @property
    def is_all_threads_base(self) -> bool:
        """True if deadlines of all threads come often enough to say what both cost."""
        return self.all_ns > 0 and (not self.focused_ns or self.all_ns <= _MAX_BASE_NS)

    @property
    def base_ns(self) -> int:
        """The period that a limit changes, and both in its ratio: of all threads, or a second, or the only one."""
        if self.is_all_threads_base or not self.all_ns:
            return self.all_ns or self.focused_ns
        return _MAX_BASE_NS

    @property
    def min_focused_ns(self) -> int:
        """How far apart the focus is looked at: a deadline of all threads serves it as well."""
        return min(self.base_ns, self.focused_ns)

    def stretched(self, base_ns: int) -> Periods:
        """Both in the ratio of `base_ns` to the one of these; where all threads do not lead, to a minute at most."""
        if not self.all_ns:
            return Periods(0, base_ns)
        all_ns = base_ns
        if not self.is_all_threads_base:
            all_ns = max(self.all_ns, min(self.all_ns * base_ns // self.base_ns, _MAX_PERIOD_NS))
        focused_ns = self.focused_ns * base_ns // self.base_ns
        return Periods(all_ns, min(focused_ns, max(all_ns, self.focused_ns)))  # beyond that it never comes
