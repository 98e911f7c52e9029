"""The values that all other packages consume: frozen and slotted, without behaviour of their own.

Imports nothing of ours. The unit of a field is in its name. Times of day are nanoseconds since the
epoch, durations are nanoseconds. Identifiers are integers until a format writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One call on a stack, resolved to names.

    A walker makes one Frame for each line of a function. Equality is identity, as with `Stack`.

    Attributes:
        namespace: module and class path (``shop.cart.Cart``), or ``unknown``.
        function: name of the function alone (``total``, ``<lambda>``).
        file: source file as the code object names it (``co_filename``), or ``unknown``.
        line: line of the call or of the running instruction, 1-based; None where CPython has none.
        first_line: first line of the function's definition, 1-based; 0 if not known.
        call: ``with``, ``acquire``, ``get``, ``run_forever`` or ``run_until_complete`` if that may have no frame.
    """

    namespace: str
    function: str
    file: str
    line: int | None
    first_line: int = 0
    call: str = ""


class OriginKind(Enum):
    """The owner of code. UNKNOWN stands for code of no known origin, such as generated code."""

    APPLICATION = "application"
    LIBRARY = "library"
    STANDARD_LIBRARY = "standard library"
    UNKNOWN = "unknown"


class CodeOrigin(NamedTuple):
    """The origin of code: its owner, and normalised name and version of its distribution, which may be empty."""

    kind: OriginKind
    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The frames of one thread at one instant, leaf first.

    A thread that has not moved since its last sample has *the same* Stack object again. Values
    computed from a stack are computed once and kept in it (`derive`), so equality is identity.
    It is `truncated` if frames at the root end were left out.
    """

    frames: tuple[Frame, ...]
    truncated: bool
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    def derive(self, compute: Callable[[Stack], _T]) -> _T:
        """Return `compute(self)`, computed at most once for this stack and each `compute`."""
        try:
            return self._derived[compute]  # type: ignore[no-any-return]
        except KeyError:
            value = self._derived[compute] = compute(self)
            return value


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of this process, as users know it.

    Attributes:
        index: number in the order of first sight, from 1; never reused in a process.
        name: name of the `threading.Thread`, else of the operating system's thread.
        ident: `threading.get_ident()` of that thread (``tid`` in the text format).
        native_id: id from the operating system (``nid``); 0 if not known.
    """

    index: int
    name: str
    ident: int
    native_id: int


class ThreadSample(NamedTuple):
    """The state of one thread at the instant of a snapshot.

    Attributes:
        cpu_ns: CPU time the thread had used; 0 if not known.
        start_ns: instant at which the thread was started, on the boot-time clock; None if not known.
        os_priority: priority from the operating system (the nice value on Linux); 0 if not known.
        running: True if the thread held the GIL, had a processor or waited for one.
        waiting_on: object that a waiting thread waits for (``condition``); empty if not known.
        wall_delta_ns: wall time since the thread's last sample or its start.
        cpu_delta_ns: CPU time in `wall_delta_ns`; the sum is shared out among samples in which it ran.
        cpu_weight_ns: weight in that sharing: the sample's periods if the thread had a processor, else 0.
            None if not known: the sample keeps its own CPU time.
    """

    thread: Thread
    stack: Stack
    cpu_ns: int
    start_ns: int | None
    os_priority: int
    running: bool
    waiting_on: str
    wall_delta_ns: int = 0
    cpu_delta_ns: int = 0
    cpu_weight_ns: int | None = None


class SpanRef(NamedTuple):
    """The span a sample was taken in.

    Attributes:
        trace_id: 128 bits, never 0.
        span_id: 64 bits, never 0.
        trace_flags: W3C trace flags, 8 bits; bit 0 is set if the span was sampled.
        local_root_id: id of the span with which the trace entered this process; 0 if not known.
        endpoint: name of the local root at that moment; empty if not known.
    """

    trace_id: int
    span_id: int
    trace_flags: int
    local_root_id: int = 0
    endpoint: str = ""


class InstrumentationSource(Enum):
    """The profiler that took a sample: of all threads, or of selected traces (snapshots)."""

    CONTINUOUS = "continuous"
    SNAPSHOT = "snapshot"


class DataType(Enum):
    """The subject of a profile. Each profile has one, because values of different types do not relate."""

    CPU = "cpu"
    ALLOCATION = "allocation"


class ValueType(NamedTuple):
    """The name of a sample value, and its unit in pprof's terms (``count``, ``nanoseconds``, ``bytes``)."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event that triggers samples, besides the timer.

    Attributes:
        name: unique name of the kind, as samples carry it (``source.event.name``).
        count: name and unit of the number of events; unique among kinds.
        amount: name and unit of the resource the events used; unique among kinds. None: they are only counted.
    """

    name: str
    count: ValueType
    amount: ValueType | None = None
    data_type: DataType = DataType.CPU

    @property
    def values(self) -> tuple[ValueType, ...]:
        """The values of its samples, in order."""
        return (self.count,) if self.amount is None else (self.count, self.amount)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that takes four times as long to make
class Event:
    """The event that triggered a sample.

    Attributes:
        labels: few distinct labels, under reserved names (`user_labels/sample_labels`).
        count: number of events the sample stands for: this one and those without a sample.
        amount: resource they used together, in the unit of the kind (``gc``: nanoseconds); 0 if it has none.
    """

    kind: EventKind
    labels: tuple[tuple[str, str | int], ...]
    count: int
    amount: int


class Sample(NamedTuple):
    """One thread's part of a snapshot, joined to its span: one record to export.

    Attributes:
        time_ns: time at which the stack was read, nanoseconds since the epoch.
        labels: the user's labels in force on the thread, as (name, value) in canonical order.
        event: event that triggered the sample, which then has no wall or CPU time; else None.
        instant_ns: `time_ns` on the boot-time clock.
    """

    time_ns: int
    period_ns: int
    thread: ThreadSample
    span: SpanRef | None
    labels: tuple[tuple[str, str], ...] = ()
    event: Event | None = None
    source: InstrumentationSource = InstrumentationSource.CONTINUOUS
    instant_ns: int = 0


class UnattributedReason(Enum):
    """The reason why time of the process is in no sample.

    INTERNAL: used by threads of the profiler, the OpenTelemetry SDK and gRPC, which are not sampled.
    UNSAMPLED: used by threads after their last sample, or by threads that run no Python code.
    """

    INTERNAL = "internal"
    UNSAMPLED = "unsampled"


class UnattributedTime(NamedTuple):
    """Time of the process since the previous snapshot that no sample stands for."""

    reason: UnattributedReason
    wall_ns: int  # of threads that are otherwise sampled
    cpu_ns: int  # negative if samples have now what was unattributed before


class IdleRepeat(NamedTuple):
    """An addition to the last sample of an idle thread, which has no samples while it is idle.

    It comes when the thread runs again or on request, and only where samples are aggregated.

    Attributes:
        snapshot_count: number of periods to add to the sample.
        period_ns: sum of these periods.
        wall_ns: wall time of the thread in them.
    """

    thread_index: int
    snapshot_count: int
    period_ns: int
    wall_ns: int


class Snapshot(NamedTuple):
    """All threads at one instant, or only those of selected traces.

    Attributes:
        time_ns: time at which the stacks were read, nanoseconds since the epoch.
        period_ns: time since the previous snapshot, as it was configured then.
        samples: samples of threads that ran Python code, oldest thread first; then those of events.
        unattributed: other time of the process, so that the sum is complete.
        ended_threads: `Thread.index` of threads in the previous snapshot that are not in this one.
        gil_wait_ns: time for which its request waited for the GIL.
        snapshot_count: number of snapshots that this stands for: more than one if no thread had run in between.
    """

    time_ns: int
    period_ns: int
    samples: tuple[Sample, ...]
    unattributed: tuple[UnattributedTime, ...] = ()
    source: InstrumentationSource = InstrumentationSource.CONTINUOUS
    idle_repeats: tuple[IdleRepeat, ...] = ()
    ended_threads: tuple[int, ...] = ()
    gil_wait_ns: int = 0
    snapshot_count: int = 1


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The sum of a window's samples that were equal in stack and labels.

    Attributes:
        labels: (key, value) pairs in canonical order, strings and numbers as they are exported.
        count: number of samples; 0 for events.
        kind: kind of the events that triggered them; None for snapshots.
        event_amount: resource these events used, in the unit of the kind.
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
    """The samples of one window that belong to one data type.

    Attributes:
        time_ns: start of the window, nanoseconds since the epoch.
        period_ns: time between two snapshots; the average if it changed.
        dropped_labels: number of samples that lost labels because the window had too many.
        kinds: kinds it has values for, used or not: merging needs the same in all profiles.
        comments: facts about the process in the window, for a person.
    """

    time_ns: int
    duration_ns: int
    period_ns: int
    aggregates: tuple[Aggregate, ...]
    dropped_labels: int = 0
    source: InstrumentationSource = InstrumentationSource.CONTINUOUS
    data_type: DataType = DataType.CPU
    kinds: tuple[EventKind, ...] = ()
    comments: tuple[str, ...] = ()


Record = TypeVar("Record", bound=Sample | Profile)  # exported as one log record


@dataclass(frozen=True, slots=True)
class Batch(Generic[Record]):
    """Records that are sent in one request, oldest first."""

    records: tuple[Record, ...]


class ExportStatus(Enum):
    """The outcome of an export: taken, refused for good, worth a retry, or worth one in smaller parts."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    RETRY = "retry"
    TOO_LARGE = "too large"


class ExportResult(NamedTuple):
    """The answer of a sink.

    Attributes:
        detail: text for a person: why the export failed and what to do; empty if it succeeded.
        retry_after_ns: pause that the receiver asked for, or None.
        rejected: number of records of a delivered batch that the receiver refused.
    """

    export_status: ExportStatus
    detail: str = ""
    retry_after_ns: int | None = None
    rejected: int = 0


class RecordCounters(NamedTuple):
    """Numbers of records since the start.

    Attributes:
        recorded: put into the queue.
        delivered: accepted by the receiver.
        queue_full: dropped, oldest first, because the queue was full.
        rejected: dropped because the receiver refused them for good.
        lost_at_exit: not delivered when the process ended.
        waiting: in the queue or in flight.
    """

    recorded: int = 0
    delivered: int = 0
    queue_full: int = 0
    rejected: int = 0
    lost_at_exit: int = 0
    waiting: int = 0

    @property
    def dropped(self) -> int:
        """Records that are lost for any reason."""
        return self.queue_full + self.rejected + self.lost_at_exit


class Sink(Protocol[Record]):
    """A destination of batches.

    Called by one thread at a time, except `set_shutdown_deadline`, `interrupt` and `shutdown`.
    """

    def export(self, batch: Batch[Record]) -> ExportResult:
        """Send `batch` and wait for the answer or the timeout. Never raises."""

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Limit all later exports to `timeout_s` seconds in total; they start no thread. The process ends."""

    def interrupt(self) -> None:
        """End an export in flight at once with RETRY; later ones continue. Safe from any thread."""

    def shutdown(self) -> None:
        """End an export in flight at once and refuse later ones. Idempotent; safe from any thread."""
