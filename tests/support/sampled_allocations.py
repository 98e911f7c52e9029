"""Samples allocations with a native ticker of the test's own. Import it after `pytest.importorskip`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from allocators import allocators
from walker_factory import make

from splunk_profiler.raw import RecordedEvent

_make = b"".ljust  # unlike a call of `bytes` it takes no tuple of arguments


@dataclass
class Drained:
    """All that a ticker has said so far."""

    ticker: Any
    samples: list[RecordedEvent] = field(default_factory=list)
    live: dict[int, RecordedEvent] = field(default_factory=dict)

    def drain(self) -> None:
        samples, ended = self.ticker.drain_allocations()
        self.samples += samples
        self.live.update({each.live_id: each for each in samples if each.live_id})
        for live_id in ended:
            self.live.pop(live_id, None)

    def of(self, function: str) -> list[RecordedEvent]:
        return [each for each in self.samples if function in each.thread.stack[0]]

    def in_use_of(self, function: str) -> list[RecordedEvent]:
        return [each for each in self.live.values() if function in each.thread.stack[0]]


@contextmanager
def sampling(sample_bytes: int, **arguments: Any) -> Iterator[Drained]:
    """Sample allocations during the block; nothing is left of it.

    No collection begins: what it allocates would count for the function that runs.
    """
    before = allocators()
    drained = Drained(make(**arguments))
    had_collections = gc.isenabled()
    gc.disable()
    make_bytes([])  # what Python keeps of it in free lists is there before
    drained.ticker.start_allocations(sample_bytes, True)
    try:
        yield drained
    finally:
        drained.ticker.stop_allocations()
        if had_collections:
            gc.enable()
    drained.drain()
    assert allocators() == before


def make_bytes(sizes: list[int]) -> tuple[bytes, ...]:
    """Make over 20 objects of these sizes, and nothing that stays in one of Python's free lists, as a list would."""
    return tuple(map(_make, sizes))


def keep_a_fifth(drained: Drained, sizes: list[int], rounds: int) -> list[bytes]:
    """Make objects of these sizes in each round, and drain; return each fifth one, which stays in use."""
    kept: list[bytes] = []
    for _ in range(rounds):
        made = make_bytes(sizes)
        kept += made[::5]
        del made
        drained.drain()
    drained.drain()
    return kept


def churn(sizes: list[int]) -> None:
    """Make objects of these sizes, and nothing beside them."""
    for size in sizes:
        bytes(size)
