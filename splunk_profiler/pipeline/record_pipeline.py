"""The two pipelines from snapshots to records: one record a sample, or one profile an export interval.

The sampling worker's thread calls `take`. The thread that stops the profiler calls `close` after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from splunk_profiler.model import (
    EventKind,
    IdleRepeat,
    InstrumentationSource,
    Profile,
    Sample,
    Sink,
    Snapshot,
    UnattributedTime,
)
from splunk_profiler.pipeline import aggregator, batch_exporter
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.batch_exporter import BatchExporter, QueueLimits


class RecordPipeline:
    """A consumer of snapshots, with the exporter of its records."""

    batch_exporter: BatchExporter[Any]

    def take(self, snapshot: Snapshot) -> None:
        """Consume a snapshot; returns at once, whatever state the receiver is in."""
        raise NotImplementedError

    def flush_if_due(self) -> None:
        """Queue profiles that are due without a snapshot; call it at least once a second."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period, at the time of the baseline snapshot (`time_ns` since the epoch)."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Queue what is left after the last snapshot, with the time `unattributed` since then."""


class SamplePipeline(RecordPipeline):
    """A record for each sample, which has neither a period nor unattributed time."""

    def __init__(self, sink: Sink[Sample], interval_ns: int) -> None:
        self.batch_exporter = BatchExporter(sink, export_interval_ns=interval_ns, size_of=batch_exporter.estimate_size)

    def take(self, snapshot: Snapshot) -> None:
        """Queue the samples."""
        self.batch_exporter.record(snapshot.samples)


class ProfilePipeline(RecordPipeline):
    """A profile for each export interval, and a second one for selected traces; see `Aggregator`."""

    def __init__(
        self,
        sink: Sink[Profile],
        interval_ns: int,
        endpoint_of: Callable[[int], str],
        take_idle_repeats: Callable[[], Iterable[IdleRepeat]],
        kinds: tuple[EventKind, ...],
    ) -> None:
        # The aggregators gather, so the exporter sends each profile at once.
        self.batch_exporter = BatchExporter(
            sink, export_interval_ns=0, size_of=aggregator.estimate_size, limits=QueueLimits(batch_records=1)
        )
        make_aggregator = partial(
            Aggregator, self.batch_exporter.record, interval_ns=interval_ns, endpoint_of=endpoint_of, kinds=kinds
        )
        self._continuous = make_aggregator(take_idle_repeats=take_idle_repeats)
        self._traces = make_aggregator(source=InstrumentationSource.SNAPSHOT)

    def take(self, snapshot: Snapshot) -> None:
        """Add the snapshot to the profile of its source."""
        is_continuous = snapshot.source is InstrumentationSource.CONTINUOUS
        (self._continuous if is_continuous else self._traces).take(snapshot)

    def flush_if_due(self) -> None:
        """Queue the profile of selected traces; there may be no more of these."""
        self._traces.flush_if_due()

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period of the profile of all threads."""
        self._continuous.begin(time_ns, period_ns)

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Queue both profiles."""
        self._continuous.close(unattributed)
        self._traces.close(())
