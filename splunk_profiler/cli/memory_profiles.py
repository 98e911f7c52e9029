"""Sums of allocations, in profiles and as text: what each line of the application allocates, and what is in use.

Runs on the main thread of `report`; draws nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from splunk_profiler.pipeline.live_heap import HEAP_BEGINS
from splunk_profiler.viewer.model import LONG_PROFILE_NS
from splunk_profiler.viewer.profile_messages import (
    UNKNOWN_FUNCTION,
    Place,
    ProfileError,
    decode_body,
    nearest_place,
    read_places,
)

_VALUES = ("alloc_space", "inuse_space")


class LineMemory(NamedTuple):
    """The bytes of one line: allocated in all records, in use in the last profiles, and more than in the first ones.

    Processes that had ended have nothing in use, and have not grown. The first profile of a process is the newest one
    in which its heap begins: it knows nothing of what was before.
    """

    place: Place
    allocated: int
    in_use: int
    grown: int


@dataclass(slots=True)
class _HeapAt:
    """The bytes in use at the end of a profile, by line; a large profile comes in parts of the same time."""

    time_ns: int
    ended_ns: int
    begins: bool = False  # says that nothing is known of what was allocated before
    in_use: Counter[Place] = field(default_factory=Counter)

    @property
    def rank_as_first(self) -> tuple[bool, int]:
        """Sort key: growth is counted from the highest."""
        return self.begins, self.time_ns if self.begins else -self.time_ns


@dataclass(slots=True)
class MemoryProfiles:
    """The sums of allocations, by the application's line nearest to the leaf, of all processes."""

    records: int = 0
    allocated: Counter[Place] = field(default_factory=Counter)
    _longest_ns: int = 0  # of the profiles up to LONG_PROFILE_NS
    _first: dict[str, _HeapAt] = field(default_factory=dict)  # by process
    _last: dict[str, _HeapAt] = field(default_factory=dict)

    @property
    def has_heaps(self) -> bool:
        """True if a profile says what is in use; records as text do not."""
        return bool(self._last)

    def add_text(self, stack: Iterable[Place], allocated: int) -> None:
        """Add a record as text that stands for so many bytes; the places of `stack` are leaf first."""
        self.records += 1
        self.allocated[nearest_place([*stack] or [Place(UNKNOWN_FUNCTION, "", 0, "", "")])] += allocated

    def add(self, body: str, process: str) -> bool:
        """Add the profile that is the body of a log record; False if it has no values of allocations.

        Raises:
            ProfileError: the body is not a profile; nothing was added.
        """
        message = decode_body(body)
        try:
            begins = HEAP_BEGINS in [message.string_table[index] for index in message.comment]
            kinds = [message.string_table[each.type] for each in message.sample_type]
            if not set(_VALUES) <= set(kinds):
                return False
            found = list(_iter_lines(message, *map(kinds.index, _VALUES)))
        except (IndexError, KeyError) as error:
            raise ProfileError(f"the profile is not consistent: {type(error).__name__} {error}") from None
        self.records += 1
        if message.duration_nanos <= LONG_PROFILE_NS:
            self._longest_ns = max(self._longest_ns, message.duration_nanos)
        heap = _HeapAt(message.time_nanos, message.time_nanos + message.duration_nanos, begins)
        first, last = self._first.setdefault(process, heap), self._last.setdefault(process, heap)
        if heap.rank_as_first > first.rank_as_first:
            first = self._first[process] = heap
        if heap.time_ns > last.time_ns:
            last = self._last[process] = heap
        at_this_time = {id(heap): heap for heap in (first, last) if heap.time_ns == message.time_nanos}
        for place, allocated, in_use in found:
            self.allocated[place] += allocated
            for heap in at_this_time.values():
                heap.in_use[place] += in_use
        return True

    def lines(self) -> list[LineMemory]:
        """Return all lines, the one first that has grown most."""
        lasting = self._find_lasting()
        first, last = (_sum(heaps[process] for process in lasting) for heaps in (self._first, self._last))
        found = [
            LineMemory(place, self.allocated[place], last[place], last[place] - first[place])
            for place in {**self.allocated, **first, **last}
        ]
        return sorted(found, key=lambda line: (-line.grown, -line.in_use, -line.allocated))

    def _find_lasting(self) -> list[str]:
        """Return the processes that had not ended: they send a profile every interval, also an empty one."""
        newest_ns = max((heap.ended_ns for heap in self._last.values()), default=0)
        return [process for process, heap in self._last.items() if newest_ns - heap.ended_ns <= 2 * self._longest_ns]


def _sum(heaps: Iterable[_HeapAt]) -> Counter[Place]:
    total: Counter[Place] = Counter()
    for heap in heaps:
        total.update(heap.in_use)
    return total


def _iter_lines(message: Any, allocated_at: int, in_use_at: int) -> Iterator[tuple[Place, int, int]]:
    places = read_places(message)
    for sample in message.sample:
        nearest = nearest_place([place for location in sample.location_id for place in places[location]])
        yield nearest, sample.value[allocated_at], sample.value[in_use_at]
