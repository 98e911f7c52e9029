"""Sampled allocations as events, by way of hooks of CPython's allocators.

The native ticker takes the samples (`native/walker/allocations.c`). This module starts it and converts
its records to events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.config import Config
from splunk_profiler.model import DataType, Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent, RecordedEvent
from splunk_profiler.stream.records import FreedBlocksRecord
from splunk_profiler.system.guard import OnceLog

if TYPE_CHECKING:
    from splunk_profiler import _walker

ALLOCATION_KIND = EventKind(
    "allocation", ValueType("alloc_samples", "count"), ValueType("alloc_space", "bytes"), DataType.ALLOCATION
)
_MAX_SAMPLE_BYTES = 1 << 40  # for the ticker


class AllocationEventSource(EventSource):
    """The source of sampled allocations, one in `sample_bytes` on average, whether the ticker runs or not.

    With `tracks_live`, it also says which of them are no longer in use.
    """

    def __init__(self, ticker: _walker.Ticker[Any, Any], sample_bytes: int, *, tracks_live: bool) -> None:
        self._ticker = ticker
        self._sample_bytes = sample_bytes
        self._tracks_live = tracks_live
        self._once_log = OnceLog()

    def start(self) -> None:
        """Start sampling."""
        self._ticker.start_allocations(self._sample_bytes, self._tracks_live)

    def stop(self) -> None:
        """Stop sampling."""
        self._ticker.stop_allocations()

    def slow_down(self, ratio: float) -> None:
        """Sample less often by this ratio, of at least 1, than at the start."""
        self._ticker.set_sample_bytes(min(round(self._sample_bytes * ratio), _MAX_SAMPLE_BYTES))

    def drain(self) -> Sequence[RawEvent | FreedBlocksRecord]:
        """Return the samples as events, then the blocks that have ended."""
        allocations, freed_ids = self._ticker.drain_allocations()
        counters = self._ticker.counters()
        if counters.hooks_refused:
            self._once_log.log(
                "allocations are not sampled any more: another library has removed the hooks of the allocators, and"
                " they cannot be added again"
            )
        if counters.allocations_lost:
            self._once_log.log(
                "allocations are missing in the profiles: there were too many at once;"
                " raise SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES"
            )
        if counters.live_evicted:
            self._once_log.log(
                "memory in use is missing in the profiles: too many sampled blocks are in use;"
                " raise SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES"
            )
        if counters.live_forgotten:
            self._once_log.log(
                "memory in use is missing in the profiles: another library has removed the hooks of the allocators"
                " for a while; start tracemalloc and the like after the profiler, or leave them on"
            )
        events: list[RawEvent | FreedBlocksRecord] = [_make_event(each) for each in allocations]
        return [*events, FreedBlocksRecord(freed_ids)] if freed_ids else events


def make_allocation_source(config: Config, ticker: Any, _native: bool) -> AllocationEventSource | None:
    """Return the source; None if it is off, as it is with the portable walker."""
    if not config.memory_enabled:
        return None
    return AllocationEventSource(ticker, config.memory_sample_bytes, tracks_live=config.sends_profiles)


def _make_event(raw: RecordedEvent) -> RawEvent:
    event = Event(ALLOCATION_KIND, (), raw.event_count, raw.event_amount)
    return RawEvent(raw.time_ns, raw.thread, event, live_id=raw.live_id)
