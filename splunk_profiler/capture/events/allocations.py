"""Sampled allocations as events, by way of hooks of CPython's allocators.

The native ticker takes the samples (`native/walker/allocations.c`). This module starts it and converts
its records to events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.config import Config
from splunk_profiler.model import DataType, Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent, RecordedEvent
from splunk_profiler.stream.records import FreedBlocksRecord
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import OnceLog

if TYPE_CHECKING:
    from splunk_profiler import _walker

ALLOCATION_KIND = EventKind(
    "allocation", ValueType("alloc_samples", "count"), ValueType("alloc_space", "bytes"), DataType.ALLOCATION
)
_MAX_SAMPLE_BYTES = 1 << 40  # for the ticker
_BUSY_BYTES_PER_S = 50 << 20  # a hundred samples a second at the default distance
_MIN_SAMPLES_PER_S = 10  # from fewer of them the rate cannot be told
_WARNINGS = {  # by counter of the ticker
    "hooks_refused": "allocations are not sampled any more: another library has removed the hooks of the allocators,"
    " and they cannot be added again",
    "allocations_lost": "allocations are missing in the profiles: there were too many at once;"
    " raise SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES",
    "live_evicted": "memory in use is missing in the profiles: too many sampled blocks are in use;"
    " raise SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES",
    "live_forgotten": "memory in use is missing in the profiles: another library has removed the hooks of the"
    " allocators for a while; start tracemalloc and the like after the profiler, or leave them on",
}


class SampleDistance:
    """The mean distance of two samples: it grows with the bytes that are allocated in a second, if these are many.

    Sums stay right, because each sample has the weight of the distance that it was drawn with. The distance grows at
    once, and shrinks by half in a second at most.

    Attributes:
        limit_ratio: the distance is at least so many times the configured one.
    """

    def __init__(self, sample_bytes: int, now_ns: int) -> None:
        self._sample_bytes = sample_bytes
        self._busy_bytes_per_s = max(_BUSY_BYTES_PER_S, _MIN_SAMPLES_PER_S * sample_bytes)
        self._looked_ns, self._allocated_bytes = now_ns, 0
        self._ratio = self.limit_ratio = 1.0

    @property
    def bytes(self) -> int:
        """The distance."""
        return min(round(self._sample_bytes * max(self._ratio, self.limit_ratio)), _MAX_SAMPLE_BYTES)

    def update(self, allocated_bytes: int, now_ns: int) -> bool:
        """Count what samples stand for; return True, once a second, if the distance has changed."""
        self._allocated_bytes += allocated_bytes
        elapsed_s = (now_ns - self._looked_ns) / 1e9
        if elapsed_s < 1:
            return False
        before = self.bytes
        self._ratio = max(self._allocated_bytes / elapsed_s / self._busy_bytes_per_s, self._ratio / 2, 1.0)
        self._looked_ns, self._allocated_bytes = now_ns, 0
        return self.bytes != before


class AllocationEventSource(EventSource):
    """The source of sampled allocations, one in `sample_bytes` on average, whether the ticker runs or not.

    Where much is allocated, it is one in more bytes (`SampleDistance`). With `tracks_live`, it also says which of them
    are no longer in use.
    """

    def __init__(
        self,
        ticker: _walker.Ticker[Any, Any],
        sample_bytes: int,
        *,
        tracks_live: bool,
        monotonic_ns: Callable[[], int] = clocks.monotonic_ns,
    ) -> None:
        self._ticker = ticker
        self._distance = SampleDistance(sample_bytes, monotonic_ns())
        self._now_ns = monotonic_ns
        self._tracks_live = tracks_live
        self._once_log = OnceLog()

    def start(self) -> None:
        """Start sampling."""
        self._ticker.start_allocations(self._distance.bytes, self._tracks_live)

    def stop(self) -> None:
        """Stop sampling."""
        self._ticker.stop_allocations()

    def slow_down(self, ratio: float) -> None:
        """Sample less often by this ratio, of at least 1, than at the start."""
        self._distance.limit_ratio = ratio
        self._ticker.set_sample_bytes(self._distance.bytes)

    def drain(self) -> Sequence[RawEvent | FreedBlocksRecord]:
        """Return the samples as events, then the blocks that have ended."""
        allocations, freed_ids = self._ticker.drain_allocations()
        if self._distance.update(sum(each.event_amount for each in allocations), self._now_ns()):
            self._ticker.set_sample_bytes(self._distance.bytes)
        counters = self._ticker.counters()
        for counter, text in _WARNINGS.items():
            if getattr(counters, counter):
                self._once_log.log(text)
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
