"""Snapshots → records: one for each sample, or a profile for each export interval.

Both pipelines deliver by a `BatchExporter`. `take` runs on the sampling worker's thread, `close` on the one that stops
the profiler, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from splunk_profiler.model import EventKind, Profile, Repeat, Sample, Sink, Snapshot, Source, UnattributedTime
from splunk_profiler.pipeline import aggregator
from splunk_profiler.pipeline import batch_exporter as recorder
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.batch_exporter import BatchExporter


class RecordPipeline(Protocol):
    """Takes snapshots."""

    @property
    def recorder(self) -> BatchExporter[Any]:
        """Delivers what they have become."""

    def take(self, snapshot: Snapshot) -> None:
        """A snapshot; returns at once, whatever becomes of the receiver."""

    def rest(self) -> None:
        """Called once a second at least: what is due goes, also if there are no snapshots."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """The first snapshot was taken, to which others are compared: now, `time_ns` since the epoch."""

    def close(self, remainders: Iterable[UnattributedTime]) -> None:
        """There are no more snapshots; `remainders` is what was used since the last one."""


class SamplePipeline:
    """A record for each sample.

    Args:
        sink: where they go.
        interval_ns: how long they are gathered before they are sent.
    """

    def __init__(self, sink: Sink[Sample], interval_ns: int) -> None:
        self.recorder = BatchExporter(sink, export_interval_ns=interval_ns, size_of=recorder.estimated_size)

    def take(self, snapshot: Snapshot) -> None:
        """See `RecordPipeline.take`."""
        self.recorder.record(snapshot.samples)

    def rest(self) -> None:
        """See `RecordPipeline.rest`: the batch exporter keeps its own time."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """See `RecordPipeline.begin`: there is nothing to compare a sample with."""

    def close(self, remainders: Iterable[UnattributedTime]) -> None:
        """See `RecordPipeline.close`: a sample has no remainders."""


class ProfilePipeline:
    """A profile for each export interval, and one of the traces that are profiled closely, if there are any.

    Args:
        sink: where they go.
        interval_ns: how much time a profile covers.
        endpoint_of: see `Aggregator`.
        rested: see `Aggregator`.
        kinds: see `Aggregator`.
    """

    def __init__(
        self,
        sink: Sink[Profile],
        interval_ns: int,
        endpoint_of: Callable[[int], str],
        rested: Callable[[], Iterable[Repeat]] = tuple,
        kinds: Iterable[EventKind] = (),
    ) -> None:
        # What is gathered has been gathered by the aggregator: a profile goes at once, and alone.
        self.recorder = BatchExporter(sink, export_interval_ns=0, size_of=aggregator.estimated_size, batch_records=1)
        self._aggregators = {
            source: Aggregator(
                self.recorder.record,
                interval_ns=interval_ns,
                endpoint_of=endpoint_of,
                source=source,
                rested=rested if source is Source.CONTINUOUS else tuple,
                kinds=kinds,
            )
            for source in Source
        }

    def take(self, snapshot: Snapshot) -> None:
        """See `RecordPipeline.take`."""
        self._aggregators[snapshot.source].take(snapshot)

    def rest(self) -> None:
        """See `RecordPipeline.rest`: traces that are profiled closely come and go."""
        self._aggregators[Source.SNAPSHOT].rest()

    def begin(self, time_ns: int, period_ns: int) -> None:
        """See `RecordPipeline.begin`."""
        self._aggregators[Source.CONTINUOUS].begin(time_ns, period_ns)

    def close(self, remainders: Iterable[UnattributedTime]) -> None:
        """See `RecordPipeline.close`."""
        self._aggregators[Source.CONTINUOUS].close(remainders)
        self._aggregators[Source.SNAPSHOT].close(())
