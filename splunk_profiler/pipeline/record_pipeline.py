"""The two pipelines from snapshots to records: one record a sample, or one profile an export interval.

The thread that feeds the pipeline calls `take`. The thread that stops the profiler calls `close` after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from splunk_profiler.model import (
    DataType,
    EventKind,
    IdleRepeat,
    InstrumentationSource,
    Snapshot,
    UnattributedTime,
)
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.live_heap import LIVE_HEAP, InUse
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS

Deliver = Callable[[tuple[Any, ...]], None]  # takes records, all samples or all profiles; returns at once


class SnapshotSource(Protocol):
    """The answers that snapshots do not have."""

    def now_ns(self) -> int:
        """Return the instant of the last snapshot or event, on a monotonic clock."""

    def new_endpoint(self, local_root_id: int, /) -> str:
        """Return the last name that a local root got after its first samples; empty if it still has the first one."""

    def take_idle_repeats(self) -> Iterable[IdleRepeat]:
        """Return further repeats of the last samples; the next snapshot samples all threads."""

    def take_in_use(self) -> InUse:
        """Return the memory in use at the end of a profile."""


class RecordPipeline(Protocol):
    """A consumer of snapshots, which delivers records."""

    def take(self, snapshot: Snapshot) -> None:
        """Consume a snapshot; returns at once, whatever state the receiver is in."""

    def flush_if_due(self, now_ns: int) -> None:
        """Deliver profiles that are due without a snapshot at the instant `now_ns`; call it at least once a second."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period, at the time of the baseline snapshot (`time_ns` since the epoch)."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver what is left after the last snapshot, with the time `unattributed` since then."""


class SamplePipeline:
    """A record for each sample, which has neither a period nor unattributed time."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def take(self, snapshot: Snapshot) -> None:
        """Deliver the samples, without events of internal threads."""
        pseudo_stacks = UNATTRIBUTED_STACKS.values()
        self._deliver(tuple(one for one in snapshot.samples if one.thread.stack not in pseudo_stacks))

    def flush_if_due(self, now_ns: int) -> None:
        """Do nothing."""

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Do nothing."""

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Do nothing."""


class ProfilePipeline:
    """A profile for each export interval; others for selected traces, and for allocations; see `Aggregator`."""

    def __init__(
        self, deliver: Deliver, interval_ns: int, kinds: tuple[EventKind, ...], source: SnapshotSource
    ) -> None:
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
