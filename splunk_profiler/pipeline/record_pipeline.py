"""Snapshots → records: one for each sample, or a profile for each export interval.

Both pipelines deliver by a `BatchExporter`. `take` runs on the sampling worker's thread, `close` on the one that stops
the profiler, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

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
from splunk_profiler.pipeline.batch_exporter import BatchExporter


class RecordPipeline(Protocol):
    """Takes snapshots."""

    @property
    def batch_exporter(self) -> BatchExporter[Any]:
        """Delivers what they have become."""

    def take(self, snapshot: Snapshot) -> None:
        """A snapshot; returns at once, whatever becomes of the receiver."""

    def flush_if_due(self) -> None:
        """Called once a second at least: what is due goes, also if there are no snapshots."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """The first snapshot was taken, to which others are compared: now, `time_ns` since the epoch."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """There are no more snapshots; `unattributed` is what was used since the last one."""


class SamplePipeline:
    """A record for each sample.

    Args:
        sink: where they go.
        interval_ns: how long they are gathered before they are sent.
    """

    def __init__(self, sink: Sink[Sample], interval_ns: int) -> None:
        self.batch_exporter = BatchExporter(sink, export_interval_ns=interval_ns, size_of=batch_exporter.estimate_size)

    def take(self, snapshot: Snapshot) -> None:
        """See `RecordPipeline.take`."""
        self.batch_exporter.record(snapshot.samples)

    def flush_if_due(self) -> None:
        """See `RecordPipeline.flush_if_due`: the batch exporter keeps its own time."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """See `RecordPipeline.begin`: there is nothing to compare a sample with."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """See `RecordPipeline.close`: a sample has no remainders."""


class ProfilePipeline:
    """A profile for each export interval, and one of the traces that are profiled closely, if there are any.

    Args:
        sink: where they go.
        interval_ns: how much time a profile covers.
        endpoint_of: see `Aggregator`.
        take_idle_spans: see `Aggregator`.
        kinds: see `Aggregator`.
    """

    def __init__(
        self,
        sink: Sink[Profile],
        interval_ns: int,
        endpoint_of: Callable[[int], str],
        take_idle_spans: Callable[[], Iterable[IdleRepeat]] = tuple,
        kinds: Iterable[EventKind] = (),
    ) -> None:
        # What is gathered has been gathered by the aggregator: a profile goes at once, and alone.
        self.batch_exporter = BatchExporter(
            sink, export_interval_ns=0, size_of=aggregator.estimate_size, batch_records=1
        )
        self._aggregators = {
            source: Aggregator(
                self.batch_exporter.record,
                interval_ns=interval_ns,
                endpoint_of=endpoint_of,
                source=source,
                take_idle_spans=take_idle_spans if source is InstrumentationSource.CONTINUOUS else tuple,
                kinds=kinds,
            )
            for source in InstrumentationSource
        }

    def take(self, snapshot: Snapshot) -> None:
        """See `RecordPipeline.take`."""
        self._aggregators[snapshot.source].take(snapshot)

    def flush_if_due(self) -> None:
        """See `RecordPipeline.flush_if_due`: traces that are profiled closely come and go."""
        self._aggregators[InstrumentationSource.SNAPSHOT].flush_if_due()

    def begin(self, time_ns: int, period_ns: int) -> None:
        """See `RecordPipeline.begin`."""
        self._aggregators[InstrumentationSource.CONTINUOUS].begin(time_ns, period_ns)

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """See `RecordPipeline.close`."""
        self._aggregators[InstrumentationSource.CONTINUOUS].close(unattributed)
        self._aggregators[InstrumentationSource.SNAPSHOT].close(())
