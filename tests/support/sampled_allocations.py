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

    No collection begins: what it allocates would count for the function that runs. Lists are taken from Python's free
    list, in which one that is made meanwhile would stay, and so be in use.
    """
    before = allocators()
    drained = Drained(make(**arguments))
    had_collections = gc.isenabled()
    gc.disable()
    spare = [[] for _ in range(60)]  # type: list[list[None]]
    del spare
    drained.ticker.start_allocations(sample_bytes, True)
    try:
        yield drained
    finally:
        drained.ticker.stop_allocations()
        if had_collections:
            gc.enable()
    drained.drain()
    assert allocators() == before


def make_bytes(sizes: list[int]) -> list[bytes]:
    """Make objects of these sizes, and nothing of a size that matters beside them."""
    return [bytes(size) for size in sizes]


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
