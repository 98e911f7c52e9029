"""The values that the pipeline makes of captures, and the destinations of these: samples, snapshots, profiles, batches.

Like those of `model`, which is all that it imports of ours. A service whose pipeline is in the exporter process
does not load them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from splunk_profiler.model import DataType, Event, EventKind, SpanRef, Stack


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


class InstrumentationSource(Enum):
    """The profiler that took a sample: of all threads, or of selected traces (snapshots)."""

    CONTINUOUS = "continuous"
    SNAPSHOT = "snapshot"


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


class Sink(Protocol[Record]):
    """A destination of batches.

    Called by one thread at a time, except `set_shutdown_deadline`, `interrupt` and `shutdown`.
    """

    def export(self, batch: Batch[Record]) -> ExportResult:
        """Send `batch` and wait for the answer or the timeout. What it raises is an error of ours, or of no memory."""

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Limit all later exports to `timeout_s` seconds in total; they start no thread. The process ends."""

    def interrupt(self) -> None:
        """End an export in flight at once with RETRY; later ones continue. Safe from any thread."""

    def shutdown(self) -> None:
        """End an export in flight at once and refuse later ones. Idempotent; safe from any thread."""
