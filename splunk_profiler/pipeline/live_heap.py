"""The live heap: sampled allocations whose memory is still in use, as samples at the end of each profile.

One thread runs all of it. Imports `model` and `samples`, and the logger.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from splunk_profiler.model import DataType, Event, EventKind, ValueType
from splunk_profiler.samples import Sample
from splunk_profiler.system.guard import logger

LIVE_HEAP = EventKind(
    "live heap", ValueType("inuse_objects", "count"), ValueType("inuse_space", "bytes"), DataType.ALLOCATION
)
# A comment of a profile: `report` compares with no profile before it.
HEAP_BEGINS = "heap.begins: what was allocated before this profile is not known to be in use"
_MAX_BLOCKS = 16_384  # the capturing side follows 8,192
_MINUTE_NS = 60_000_000_000
_AGES_NS = tuple(minutes * _MINUTE_NS for minutes in (1, 10, 60, 6 * 60, 24 * 60))
_AGE_LABELS = tuple((("heap.age", age),) for age in ("<1m", "1m-10m", "10m-1h", "1h-6h", "6h-1d", ">1d"))


class _Block(NamedTuple):
    """A sampled block in use: the sample of its allocation, and its instant."""

    sample: Sample
    event: Event
    instant_ns: int


class InUse(NamedTuple):
    """The memory in use at the end of a profile.

    Attributes:
        samples: a sample of each sampled block.
        begins: True for the first profile since blocks are followed: earlier ones may be in use, and have no sample.
    """

    samples: tuple[Sample, ...]
    begins: bool


class LiveHeap:
    """The sampled blocks that are in use, oldest first; the log says once that there were too many."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._begins = True
        self._has_evicted = False

    def add(self, live_id: int, sample: Sample, event: Event, instant_ns: int) -> None:
        """Add the block of a sampled allocation."""
        if len(self._blocks) >= _MAX_BLOCKS:
            self._evict_oldest()
        self._blocks[live_id] = _Block(sample, event, instant_ns)

    def _evict_oldest(self) -> None:
        del self._blocks[next(iter(self._blocks))]
        if not self._has_evicted:
            logger.warning("more than %d sampled blocks of memory are in use: profiles lack the oldest", _MAX_BLOCKS)
        self._has_evicted = True

    def end(self, live_ids: Iterable[int]) -> None:
        """Remove blocks that are no longer in use."""
        for live_id in live_ids:
            self._blocks.pop(live_id, None)

    def rename_endpoints(self, names: Mapping[int, str]) -> None:
        """Give samples the last names of their local roots, which blocks outlive: `names` keeps the newest only."""
        for live_id, block in self._blocks.items():
            span = block.sample.span
            if span is not None and (name := names.get(span.local_root_id, span.endpoint)) != span.endpoint:
                sample = block.sample._replace(span=span._replace(endpoint=name))
                self._blocks[live_id] = block._replace(sample=sample)

    def clear(self) -> None:
        """Begin anew: the ends of blocks may have been missed."""
        self._blocks.clear()
        self._begins = True

    def take(self, now_ns: int) -> InUse:
        """Return what is in use at the end of a profile, the instant `now_ns`, with the age of each block."""
        found = []
        for sample, event, instant_ns in self._blocks.values():
            labels = _AGE_LABELS[bisect_right(_AGES_NS, now_ns - instant_ns)]
            found.append(sample._replace(event=Event(LIVE_HEAP, labels, event.count, event.amount)))
        begins, self._begins = self._begins, False
        return InUse(tuple(found), begins)
