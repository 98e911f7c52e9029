"""The two pipelines from snapshots to records: one record a sample, or one profile an export interval.

The sampling worker's thread calls `take`. The thread that stops the profiler calls `close` after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from splunk_profiler.model import (
    EventKind,
    IdleRepeat,
    InstrumentationSource,
    Snapshot,
    UnattributedTime,
)
from splunk_profiler.pipeline.aggregator import Aggregator

Deliver = Callable[[tuple[Any, ...]], None]  # takes records, all samples or all profiles; returns at once


class SnapshotSource(Protocol):
    """The answers that snapshots do not have."""

    def now_ns(self) -> int:
        """Return the current instant on a monotonic clock, as snapshots have it."""

    def endpoint(self, local_root_id: int, /) -> str:
        """Return the current name of a local root; empty if it is the one that its samples have."""

    def take_idle_repeats(self) -> Iterable[IdleRepeat]:
        """Return further repeats of the last samples; the next snapshot samples all threads."""


class RecordPipeline(Protocol):
    """A consumer of snapshots, which delivers records."""

    def take(self, snapshot: Snapshot) -> None:
        """Consume a snapshot; returns at once, whatever state the receiver is in."""

    def flush_if_due(self) -> None:
        """Deliver profiles that are due without a snapshot; call it at least once a second."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period, at the time of the baseline snapshot (`time_ns` since the epoch)."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver what is left after the last snapshot, with the time `unattributed` since then."""


class SamplePipeline:
    """A record for each sample, which has neither a period nor unattributed time."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def take(self, snapshot: Snapshot) -> None:
        """Deliver the samples."""
        self._deliver(snapshot.samples)

    def flush_if_due(self) -> None:
        """Do nothing."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Do nothing."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Do nothing."""


class ProfilePipeline:
    """A profile for each export interval, and a second one for selected traces; see `Aggregator`."""

    def __init__(
        self, deliver: Deliver, interval_ns: int, kinds: tuple[EventKind, ...], source: SnapshotSource
    ) -> None:
        make_aggregator = partial(
            Aggregator,
            deliver,
            interval_ns=interval_ns,
            endpoint_of=source.endpoint,
            kinds=kinds,
            monotonic_ns=source.now_ns,
        )
        self._continuous = make_aggregator(take_idle_repeats=source.take_idle_repeats)
        self._traces = make_aggregator(source=InstrumentationSource.SNAPSHOT)

    def take(self, snapshot: Snapshot) -> None:
        """Add the snapshot to the profile of its source."""
        is_continuous = snapshot.source is InstrumentationSource.CONTINUOUS
        (self._continuous if is_continuous else self._traces).take(snapshot)

    def flush_if_due(self) -> None:
        """Deliver the profile of selected traces; there may be no more of these."""
        self._traces.flush_if_due()

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period of the profile of all threads."""
        self._continuous.begin(time_ns, period_ns)

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver both profiles."""
        self._continuous.close(unattributed)
        self._traces.close(())
