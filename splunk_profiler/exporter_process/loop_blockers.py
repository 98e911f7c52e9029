"""The functions that blocked the event loops of a host, for its status.

`StreamSession` gives it the profiles that it queues for export, on one thread at a time. The status is read on another
one when the stream has just ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from splunk_profiler.code_origin.paths import is_library
from splunk_profiler.model import Stack
from splunk_profiler.samples import Aggregate, Profile, Sample

LOOP_BLOCKED = "loop_blocked"  # `EventKind.name`
_MAX_KEPT, _MAX_REPORTED = 256, 10
_MAX_LENGTH = 200  # of a name


class LoopBlocker(NamedTuple):
    """The application's function nearest to the leaf, with task and endpoint, and the sum of its blocks of loops.

    Attributes:
        blocks: those that began in it; one that has lasted for a second may go on in another function.
    """

    function: str
    task: str
    endpoint: str
    blocks: int
    blocked_ns: int


class LoopBlockers:
    """The sums of the largest blockers: beyond 256, each new one takes the place of the smallest."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], LoopBlocker] = {}

    def add(self, records: Iterable[Sample | Profile]) -> None:
        """Add the blocks in profiles; other records have none."""
        for record in records:
            if isinstance(record, Profile):
                for aggregate in record.aggregates:
                    if aggregate.kind is not None and aggregate.kind.name == LOOP_BLOCKED:
                        self._add(aggregate)

    def worst(self) -> list[LoopBlocker]:
        """Return the ten that blocked for longest in total, longest first."""
        return sorted(self._sums.copy().values(), key=lambda each: -each.blocked_ns)[:_MAX_REPORTED]

    def _add(self, aggregate: Aggregate) -> None:
        labels = dict(aggregate.labels)
        function = aggregate.stack.derive(_nearest_function)
        key = (_cut(function), _cut(labels.get("task.name", "")), _cut(labels.get("endpoint", "")))
        known = self._sums.get(key, LoopBlocker(*key, 0, 0))
        if key not in self._sums and len(self._sums) == _MAX_KEPT:
            del self._sums[min(self._sums, key=lambda each: self._sums[each].blocked_ns)]
        blocks, blocked_ns = known.blocks + aggregate.event_count, known.blocked_ns + aggregate.event_amount
        self._sums[key] = known._replace(blocks=blocks, blocked_ns=blocked_ns)


def _cut(name: str | int) -> str:
    return str(name)[:_MAX_LENGTH]


def _nearest_function(stack: Stack) -> str:
    own = (frame for frame in stack.frames if not frame.file.startswith("<") and not is_library(frame.file))
    nearest = next(own, stack.frames[0])
    return f"{nearest.namespace}.{nearest.function}"
