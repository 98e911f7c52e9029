"""The values that a reader gives: captures, with the threads, stacks and spans that the records refer to.

Records that refer to none, and need no decoding, are given as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from splunk_profiler.model import Event, SpanRef, Stack
from splunk_profiler.samples import Thread
from splunk_profiler.stream.records import (
    EndpointRecord,
    EndRecord,
    FreedBlocksRecord,
    LostRecord,
    QuietRecord,
    TraceEndRecord,
    TraceRecord,
)


class StartTime(NamedTuple):
    """The interval in which a thread was started: from `earliest_ns`, before `latest_ns`."""

    earliest_ns: int
    latest_ns: int


@dataclass(slots=True, eq=False)
class CapturedThread:
    """A thread, with its last name; `start_time` is on the boot-time clock, None if not known."""

    thread: Thread
    start_time: StartTime | None = None


class ThreadState(NamedTuple):
    """A thread at a capture, as `stream.records.ThreadEntry` describes it; `state` is None if not known."""

    info: CapturedThread
    stack: Stack
    span: SpanRef | None
    labels: tuple[tuple[str, str], ...]
    cpu_ns: int
    state: int | None
    nice: int

    @property
    def number(self) -> int:
        """`Thread.index`, which is never reused."""
        return self.info.thread.index


class CapturedSnapshot(NamedTuple):
    """Threads at one instant; the times are those of `raw.RawSnapshot`.

    Attributes:
        is_focused: True if it has only threads of selected traces, and says nothing of others.
        is_complete: True if it has all threads; else it has those that differ from the previous snapshot.
        threads: in the order of `Thread.index`, as far as they are listed.
        ended: `Thread.index` of threads that have ended since the previous snapshot.
    """

    time_ns: int
    instant_ns: int
    latency_ns: int
    period_ns: int
    since_previous_ns: int
    process_cpu_ns: int
    gil_wait_ns: int
    is_focused: bool
    is_complete: bool
    threads: list[ThreadState]
    ended: list[int]


class CapturedEvent(NamedTuple):
    """An event, with its thread as it was then; `live_id` is that of `stream.records.EventRecord`."""

    time_ns: int
    instant_ns: int
    thread: ThreadState
    event: Event
    live_id: int = 0


class ProcessStarted(NamedTuple):
    """The process whose captures follow; `settings` are those of its profiler, without secrets in files."""

    settings: dict[str, object]


class ResourceChanged(NamedTuple):
    """The resource of the process from now on; one that is not final is what the profiler adds to the detected one."""

    is_final: bool
    attributes: dict[str, object]
    schema_url: str


def quiet_snapshot(quiet: QuietRecord, number: int) -> CapturedSnapshot:
    """Return one of these deadlines, from 1 on, as a snapshot in which nothing has changed."""
    ago_ns = quiet.period_ns * (quiet.deadline_count - number)
    return CapturedSnapshot(
        quiet.time_ns - ago_ns,
        quiet.instant_ns - ago_ns,
        latency_ns=0,
        period_ns=quiet.period_ns,
        since_previous_ns=0,
        process_cpu_ns=quiet.process_cpu_ns,
        gil_wait_ns=0,
        is_focused=False,
        is_complete=False,
        threads=[],
        ended=[],
    )


Item = (
    ProcessStarted
    | ResourceChanged
    | CapturedSnapshot
    | CapturedEvent
    | FreedBlocksRecord
    | TraceRecord
    | TraceEndRecord
    | QuietRecord
    | EndpointRecord
    | LostRecord
    | EndRecord
)
