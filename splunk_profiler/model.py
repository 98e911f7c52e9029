"""The values that everything else consumes: frozen, slotted, without behaviour of their own.

Owns no thread and imports nothing of ours. A field's unit is in its name. Times of day are nanoseconds
since the epoch, durations are nanoseconds, identifiers are integers until a format writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One call on a stack, already resolved to names.

    A walker has one Frame for each line of a function, so equality is identity, as with `Stack`.

    Attributes:
        namespace: module and class path (``shop.cart.Cart``), or ``unknown``.
        function: the function's own name (``total``, ``<lambda>``).
        file: the source file as the code object names it (``co_filename``), or ``unknown``.
        line: line of the call or of the running instruction, 1-based; None where CPython has none.
        first_line: line on which the function's definition begins, 1-based; 0 if not known.
    """

    namespace: str
    function: str
    file: str
    line: int | None
    first_line: int = 0


class OriginKind(Enum):
    """Whose code it is. UNKNOWN: nothing says, as of code that was generated."""

    APPLICATION = "application"
    LIBRARY = "library"
    STANDARD_LIBRARY = "standard library"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CodeOrigin:
    """Where code comes from.

    Attributes:
        kind: whose it is.
        name: the normalised name of its distribution (``opentelemetry-sdk``); empty if it is in none.
        version: of the distribution; empty if not known.
    """

    kind: OriginKind
    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The frames of one thread at one instant, leaf first.

    A thread that has not moved since the last sample has *the same* Stack object again, so whatever is
    computed from a stack is computed once and kept in it (`derive`). Equality is identity for that reason.

    Attributes:
        frames: leaf first, at most the configured depth.
        truncated: True if frames at the root end were left out.
    """

    frames: tuple[Frame, ...]
    truncated: bool
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    def derive(self, compute: Callable[[Stack], _T]) -> _T:
        """`compute(self)`, computed at most once for this stack and each `compute`."""
        try:
            return self._derived[compute]  # type: ignore[no-any-return]
        except KeyError:
            value = self._derived[compute] = compute(self)
            return value


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of this process as its user knows it.

    Attributes:
        index: counts threads in the order they were first seen, from 1; never given twice in a process.
        name: of the `threading.Thread`, else of the operating system's thread.
        ident: `threading.get_ident()` of that thread (the text format's ``tid``).
        native_id: the operating system's id (``nid``); 0 if not known.
    """

    index: int
    name: str
    ident: int
    native_id: int


@dataclass(frozen=True, slots=True)
class ThreadSample:
    """What one thread was doing at the instant of a snapshot.

    Attributes:
        thread: whose stack this is.
        stack: its frames.
        cpu_ns: CPU time the thread had used; 0 if not known.
        elapsed_ns: wall time the thread had lived; 0 if not known.
        os_priority: the operating system's priority (its nice value on Linux); 0 if not known.
        running: True if the thread held the GIL, had a processor or waited for one; else it waited for something else.
        waiting_on: what a waiting thread waits for (``condition``), empty if that cannot be told.
        wall_delta_ns: wall time since the thread's last sample, or since its birth: what this sample stands for.
        cpu_delta_ns: CPU time that the thread used in it, wherever that was: what all of its samples have together is
            shared out among those in which it ran.
        cpu_weight_ns: how much of that this sample is to have, compared to others: the periods that it stands for
            if the thread had a processor, else 0; None: not known, it has its own.
    """

    thread: Thread
    stack: Stack
    cpu_ns: int
    elapsed_ns: int
    os_priority: int
    running: bool
    waiting_on: str
    wall_delta_ns: int = 0
    cpu_delta_ns: int = 0
    cpu_weight_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SpanRef:
    """The span a sample was taken in.

    Attributes:
        trace_id: 128 bits, never 0.
        span_id: 64 bits, never 0.
        trace_flags: W3C trace flags, 8 bits; bit 0 says whether the span was sampled.
        local_root_id: id of the span with which the trace came into this process; 0 if not known.
        endpoint: name that the local root had at that moment; empty if not known.
    """

    trace_id: int
    span_id: int
    trace_flags: int
    local_root_id: int = 0
    endpoint: str = ""


class InstrumentationSource(Enum):
    """Which profiler a sample is of: that of all threads, or that of the traces that are profiled closely."""

    CONTINUOUS = "continuous"
    SNAPSHOT = "snapshot"


class DataType(Enum):
    """What profiles are of. Each is of one of these alone: their values are in no relation to each other."""

    CPU = "cpu"
    ALLOCATION = "allocation"


class ValueType(NamedTuple):
    """What a value of samples is called, and its unit in pprof's words (``count``, ``nanoseconds``, ``bytes``)."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of thing at which samples are taken, besides that the time has come.

    Attributes:
        name: which one, as samples say it (``source.event.name``); no other kind has the same.
        count: what the number of events is called; no other kind has values of the same names.
        amount: what is called that which they have taken.
        data_type: the profiles to which these values belong.
    """

    name: str
    count: ValueType
    amount: ValueType
    data_type: DataType = DataType.CPU


@dataclass(frozen=True, slots=True)
class Event:
    """Why a sample was taken, if it was not that the time had come.

    Attributes:
        kind: what it was.
        labels: what distinguishes events of this kind; few different ones. Their names begin with ``source.event.``, or
            with another prefix that the user's labels cannot have (`user_labels/sample_labels`).
        count: how many events the sample stands for: itself, and those of which none was taken.
        amount: what they have taken together, in the unit of the kind (``gc``: nanoseconds).
    """

    kind: EventKind
    labels: tuple[tuple[str, str | int], ...]
    count: int
    amount: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One thread's part of a snapshot joined to its span: one record to be exported.

    Attributes:
        time_ns: when the stack was read, nanoseconds since the epoch.
        period_ns: distance from the snapshot before.
        thread: what the thread was doing.
        span: the span that was active on it, or None.
        labels: the user's labels that were in force on it: (name, value) each, in one order for all.
        event: what it was taken at; None: at a snapshot. The sample of an event has neither wall nor CPU time, which
            are all in those of the snapshots.
        source: which profiler it is of.
    """

    time_ns: int
    period_ns: int
    thread: ThreadSample
    span: SpanRef | None
    labels: tuple[tuple[str, str], ...] = ()
    event: Event | None = None
    source: InstrumentationSource = InstrumentationSource.CONTINUOUS


class UnattributedReason(Enum):
    """Why time of the process is in no sample.

    INTERNAL: threads of the profiler, the OpenTelemetry SDK and gRPC used it, which are left out of the samples.
    UNSAMPLED: threads used it after their last sample, or threads that run no Python code.
    """

    INTERNAL = "internal"
    UNSAMPLED = "unsampled"


@dataclass(frozen=True, slots=True)
class UnattributedTime:
    """Time of the process that no sample stands for, since the snapshot before.

    Attributes:
        reason: what is known of it.
        wall_ns: wall time of threads that are otherwise sampled.
        cpu_ns: CPU time.
    """

    reason: UnattributedReason
    wall_ns: int
    cpu_ns: int


class IdleRepeat(NamedTuple):
    """A thread has not run since its last sample, which stands for more snapshots than its own.

    Attributes:
        thread_index: its `Thread.index`.
        snapshot_count: how many more.
        period_ns: the sum of their distances.
        wall_ns: wall time of the thread in them.
    """

    thread_index: int
    snapshot_count: int
    period_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All threads at one instant, or those of the traces that are profiled closely.

    Attributes:
        time_ns: when the stacks were read, nanoseconds since the epoch.
        period_ns: distance from the snapshot before, as it was to be at that time.
        samples: one for each thread that ran Python code, oldest thread first; then those of events since the last one.
        unattributed: what the process has used besides, so that all of it adds up.
        source: which profiler all of this is of.
        idle_repeats: what there is to add to samples of snapshots before this one. Where samples are added up, threads
            that rest have none in a snapshot; they have a repeat when they run again, or when somebody wants to know.
        ended_threads: `Thread.index` of those that were in the snapshot before and are not in this one.
    """

    time_ns: int
    period_ns: int
    samples: tuple[Sample, ...]
    unattributed: tuple[UnattributedTime, ...] = ()
    source: InstrumentationSource = InstrumentationSource.CONTINUOUS
    idle_repeats: tuple[IdleRepeat, ...] = ()
    ended_threads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Samples of a period that were equal in stack and labels.

    Attributes:
        stack: their stack.
        labels: (key, value) each, strings and numbers as they are sent, in one order for all.
        count: how many there were; 0 for events.
        wall_ns: the wall time they stand for.
        cpu_ns: the CPU time they stand for.
        kind: of the events at which they were taken; None: at snapshots.
        event_count: events they stand for.
        event_amount: what these have taken, in the unit of the kind.
    """

    stack: Stack
    labels: tuple[tuple[str, str | int], ...]
    count: int
    wall_ns: int
    cpu_ns: int
    kind: EventKind | None = None
    event_count: int = 0
    event_amount: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """What was sampled in one period, as far as it is of one data type.

    Attributes:
        time_ns: its start, nanoseconds since the epoch.
        duration_ns: its length.
        period_ns: the distance between two snapshots, on the average if it changed.
        aggregates: what was seen.
        dropped_labels: samples that were merged under fewer labels than they had, because there were too many.
        source: which profiler it is of.
        data_type: what it is of.
        kinds: the kinds of events that it has values for: those of its aggregates, and others. Readers that add
            profiles up want the same values in all of them.
    """

    time_ns: int
    duration_ns: int
    period_ns: int
    aggregates: tuple[Aggregate, ...]
    dropped_labels: int = 0
    source: InstrumentationSource = InstrumentationSource.CONTINUOUS
    data_type: DataType = DataType.CPU
    kinds: tuple[EventKind, ...] = ()


Record = TypeVar("Record", bound=Sample | Profile)  # what is sent as one log record


@dataclass(frozen=True, slots=True)
class Batch(Generic[Record]):
    """Records that go out in one request, oldest first; `size` is their estimated size in bytes."""

    records: tuple[Record, ...]
    size: int


class ExportStatus(Enum):
    """What became of a batch: taken, refused for good, worth another try, or worth one in smaller parts."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    RETRY = "retry"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A sink's answer.

    Attributes:
        export_status: what became of the batch.
        detail: for a person: why it was not delivered, and what to do; empty if it was.
        retry_after_ns: the receiver's own wish for a pause, or None.
        rejected: how many records of a delivered batch the receiver says it refused.
    """

    export_status: ExportStatus
    detail: str = ""
    retry_after_ns: int | None = None
    rejected: int = 0


class Sink(Protocol[Record]):
    """Where batches go. Called by one thread at a time, except `set_shutdown_deadline`, `interrupt` and `shutdown`."""

    def export(self, batch: Batch[Record]) -> ExportResult:
        """Send `batch`; blocks until it is answered or its time is over. Never raises."""

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """The process ends: exports from now on are over in `timeout_s` seconds and start no thread."""

    def interrupt(self) -> None:
        """End an export in flight at once, which answers RETRY; later ones go on. Safe from any thread."""

    def shutdown(self) -> None:
        """End an export in flight at once and refuse later ones; safe from any thread, and twice."""
