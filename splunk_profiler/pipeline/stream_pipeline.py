"""The pipeline of one stream: captures in, records for an exporter out. It does not know in which process it runs.

Called by one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from splunk_profiler.pipeline.live_heap import InUse, LiveHeap
from splunk_profiler.pipeline.selected_traces import SelectedTraces
from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder
from splunk_profiler.pipeline.trace_snapshot_builder import TraceSnapshotBuilder
from splunk_profiler.raw import Periods
from splunk_profiler.samples import IdleRepeat, Snapshot, UnattributedTime
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot, Item, ProcessStarted
from splunk_profiler.stream.records import (
    EndpointRecord,
    EndRecord,
    FreedBlocksRecord,
    QuietRecord,
    TraceEndRecord,
    TraceRecord,
)
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.printable import shortened

_MAX_ENDPOINTS = 4096
Deliver = Callable[[tuple[Any, ...]], None]  # takes records, all samples or all profiles; returns at once


class RecordPipeline:
    """A consumer of snapshots, which delivers records."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def take(self, snapshot: Snapshot) -> None:
        """Consume a snapshot; returns at once, whatever state the receiver is in."""
        raise NotImplementedError

    def flush_if_due(self, now_ns: int) -> None:
        """Deliver profiles that are due without a snapshot at the instant `now_ns`; call it at least once a second."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period, at the time of the baseline snapshot (`time_ns` since the epoch)."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver what is left after the last snapshot, with the time `unattributed` since then."""


class PipelineSettings(NamedTuple):
    """The settings of the step from captures to samples.

    Attributes:
        periods: of both kinds of captures, as configured.
        skips_idle: idle threads are counted, not sampled.
        has_times: samples need wall and CPU time.
        include_internal: keep the threads of the profiler, the SDK and gRPC.
        tracing_stacks_only: keep only samples that were taken inside a span.
    """

    periods: Periods
    skips_idle: bool
    has_times: bool = True
    include_internal: bool = False
    tracing_stacks_only: bool = False


class StreamPipeline:
    """The pipeline of one stream.

    Args:
        make_records: called with this pipeline; returns the consumer of its snapshots.
        guard: keeps an error at one item from others; by default it counts and logs them.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        make_records: Callable[[StreamPipeline], RecordPipeline],
        guard: Guard | None = None,
    ) -> None:
        self._settings = settings
        self._guard = guard or Guard("the pipeline")
        self._snapshot_builder = SnapshotBuilder(
            settings.periods.all_ns,
            skips_idle=settings.skips_idle,
            include_internal=settings.include_internal,
            has_times=settings.has_times,
        )
        self._traces = SelectedTraces()
        self._trace_builder = TraceSnapshotBuilder(self._snapshot_builder, self._traces, settings.periods)
        self._endpoints: OrderedDict[int, str] = OrderedDict()
        self._live_heap = LiveHeap()
        self._now_ns = 0
        self._has_baseline = self._is_closed = False
        self._records = make_records(self)

    def now_ns(self) -> int:
        """Return the instant of the last capture or event: it may be long ago where the stream is read late."""
        return self._now_ns

    def new_endpoint(self, local_root_id: int) -> str:
        """Return the last name that a local root got after its first samples; empty if it still has the first one."""
        return self._endpoints.get(local_root_id, "")

    def take_idle_repeats(self) -> tuple[IdleRepeat, ...]:
        """Return the repeats of idle threads up to the last capture; the next one samples all threads again."""
        return self._snapshot_builder.take_idle_repeats()

    def take_in_use(self) -> InUse:
        """Return the memory in use at the end of a profile."""
        self._live_heap.rename_endpoints(self._endpoints)
        return self._live_heap.take(self._now_ns)

    def tick(self, now_ns: int) -> None:
        """Queue what is due without a capture, at an instant on the boot-time clock; call it at least once a second.

        Captures from before that may still come.
        """
        self._records.flush_if_due(now_ns)

    def close(self, end: EndRecord | None = None) -> None:
        """Queue what is left after the last capture; the stream may have been cut off."""
        if self._is_closed:
            return
        self._is_closed = True
        settings = self._settings
        if self._has_baseline:
            self._add(Snapshot(0, 0, (), idle_repeats=self.take_idle_repeats()))
        is_complete = end is not None and settings.periods.all_ns and not settings.tracing_stacks_only
        self._records.close(self._snapshot_builder.unattributed(end) if end is not None and is_complete else ())

    def take(self, item: Item) -> None:
        """Take the next item of the stream; never raises."""
        with self._guard.catching():
            if isinstance(item, CapturedSnapshot | QuietRecord | CapturedEvent | EndRecord):
                self._now_ns = max(self._now_ns, item.instant_ns)
            self._take(item)

    def _take(self, item: Item) -> None:
        if isinstance(item, CapturedSnapshot):
            self._take_snapshot(item)
        elif self._has_baseline and isinstance(item, QuietRecord):
            self._add_quiet(item)
        elif isinstance(item, CapturedEvent):
            self._add_event(item)
        elif isinstance(item, FreedBlocksRecord):
            self._live_heap.end(item.live_ids)
        elif isinstance(item, ProcessStarted):  # the ends of blocks and traces may have been lost before
            self._live_heap.clear()
            self._traces.clear()
        elif isinstance(item, TraceRecord):
            self._traces.select(item)
        elif isinstance(item, TraceEndRecord):
            self._traces.end(item)
        elif isinstance(item, EndpointRecord):
            self._name_endpoint(item)
        elif isinstance(item, EndRecord):
            self.close(item)

    def _name_endpoint(self, named: EndpointRecord) -> None:
        self._endpoints[named.local_root_id] = shortened(named.name)
        if len(self._endpoints) > _MAX_ENDPOINTS:
            self._endpoints.popitem(last=False)

    def _take_snapshot(self, captured: CapturedSnapshot) -> None:
        if not captured.is_focused:
            if self._has_baseline:
                self._add(self._snapshot_builder.snapshot(captured))
            else:
                self._snapshot_builder.set_baseline(captured)
                self._records.begin(captured.time_ns, self._settings.periods.all_ns)
                self._has_baseline = True
        if self._traces.has_selected(captured.time_ns):
            of_traces = self._trace_builder.snapshot(captured)
            if of_traces.samples:
                self._records.take(of_traces)

    def _add_quiet(self, deadlines: QuietRecord) -> None:
        for snapshot in self._snapshot_builder.quiet(deadlines):
            self._add(snapshot)

    def _add_event(self, captured: CapturedEvent) -> None:
        if not self._has_baseline:
            return
        sample = self._snapshot_builder.event_sample(captured)
        if captured.live_id and (sample.span is not None or not self._settings.tracing_stacks_only):
            self._live_heap.add(captured.live_id, sample, captured.event, captured.instant_ns)
        self._add(Snapshot(captured.time_ns, 0, (sample,)))

    def _add(self, snapshot: Snapshot) -> None:
        if self._settings.tracing_stacks_only:
            samples = tuple(sample for sample in snapshot.samples if sample.span is not None)
            snapshot = snapshot._replace(samples=samples, unattributed=())
        self._records.take(snapshot)
