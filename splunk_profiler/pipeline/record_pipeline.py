"""The two pipelines from snapshots to records: one record a sample, or one profile an export interval.

The thread that feeds the pipeline calls `take`. The thread that stops the profiler calls `close` after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from splunk_profiler.model import DataType, EventKind
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.live_heap import LIVE_HEAP
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.pipeline.stream_pipeline import Deliver, RecordPipeline, StreamPipeline
from splunk_profiler.samples import InstrumentationSource, Snapshot, UnattributedTime


class SamplePipeline(RecordPipeline):
    """A record for each sample, which has neither a period nor unattributed time."""

    def take(self, snapshot: Snapshot) -> None:
        """Deliver the samples, without events of internal threads."""
        pseudo_stacks = UNATTRIBUTED_STACKS.values()
        self._deliver(tuple(one for one in snapshot.samples if one.thread.stack not in pseudo_stacks))


class ProfilePipeline(RecordPipeline):
    """A profile for each export interval; others for selected traces, and for allocations; see `Aggregator`."""

    def __init__(
        self, deliver: Deliver, interval_ns: int, kinds: tuple[EventKind, ...], source: StreamPipeline
    ) -> None:
        super().__init__(deliver)
        make_aggregator = partial(
            Aggregator,
            deliver,
            interval_ns=interval_ns,
            endpoint_of=source.new_endpoint,
            kinds=kinds,
            monotonic_ns=source.now_ns,
        )
        self._continuous = make_aggregator(take_idle_repeats=source.take_idle_repeats)
        self._traces = make_aggregator(source=InstrumentationSource.SNAPSHOT)
        # With room of its own: allocations have many spans.
        self._allocations = make_aggregator(take_in_use=source.take_in_use if LIVE_HEAP in kinds else None)

    def take(self, snapshot: Snapshot) -> None:
        """Add the snapshot to the profile of its source or subject."""
        if snapshot.source is not InstrumentationSource.CONTINUOUS:
            self._traces.take(snapshot)
        elif _has_allocations(snapshot):
            self._allocations.take(snapshot)
        else:
            self._continuous.take(snapshot)

    def flush_if_due(self, now_ns: int) -> None:
        """Deliver the profiles of selected traces and of allocations; there may be no more of these."""
        self._traces.flush_if_due(now_ns)
        self._allocations.flush_if_due(now_ns)

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period of the profiles of all threads."""
        self._continuous.begin(time_ns, period_ns)
        self._allocations.begin(time_ns, period_ns)

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver all profiles."""
        self._continuous.close(unattributed)
        self._traces.close(())
        self._allocations.close(())


def _has_allocations(snapshot: Snapshot) -> bool:
    """Return True for samples of events whose values belong into a profile of allocations."""
    event = snapshot.samples[0].event if snapshot.samples else None
    return event is not None and event.kind.data_type is DataType.ALLOCATION
