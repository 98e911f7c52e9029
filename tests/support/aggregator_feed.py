"""Samples for an `Aggregator`, and one with its clock and the profiles that it has delivered."""

from __future__ import annotations

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.model import Event, Frame, SpanRef, Stack
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.window import Bounds
from splunk_profiler.samples import (
    Aggregate,
    InstrumentationSource,
    Profile,
    Sample,
    Snapshot,
    Thread,
    ThreadSample,
    UnattributedTime,
)

SECOND_NS = 1_000_000_000
MS = 1_000_000
WORK, MAIN = Frame("shop", "work", "shop.py", 7, 5), Frame("shop", "main", "shop.py", 2, 1)
STACK = Stack((WORK, MAIN), truncated=False)


def seen(
    stack: Stack = STACK, *, thread: int = 1, running: bool = True, wall_ms: int = 1000, cpu_ms: int = 10
) -> ThreadSample:
    named = Thread(thread, f"worker-{thread}", 0x7000 + thread, 100 + thread)
    return ThreadSample(named, stack, 0, 0, 0, running, "", wall_ms * MS, cpu_ms * MS)


def sample(thread: ThreadSample, span: SpanRef | None = None, time_ns: int = 0, **user_labels: str) -> Sample:
    return Sample(time_ns, SECOND_NS, thread, span, tuple(user_labels.items()))


def collection(generation: int = 0, *, count: int = 1, ms: int = 2, thread: int = 1, stack: Stack = STACK) -> Sample:
    event = Event(GC_KIND, (("gc.generation", str(generation)),), count, ms * MS)
    return sample(seen(stack, thread=thread, wall_ms=0, cpu_ms=0))._replace(event=event)


class Feed:
    """An aggregator with its clock and the profiles that it has delivered."""

    def __init__(
        self,
        *,
        interval_s: int = 10,
        bounds: Bounds | None = None,
        names: dict[int, str] | None = None,
        source: InstrumentationSource = InstrumentationSource.CONTINUOUS,
    ) -> None:
        self.now_ns = 50 * SECOND_NS
        self.profiles: list[Profile] = []
        known = names or {}
        self.aggregator = Aggregator(
            self.profiles.extend,
            interval_ns=interval_s * SECOND_NS,
            endpoint_of=lambda root: known.get(root, ""),
            bounds=bounds or Bounds(),
            monotonic_ns=lambda: self.now_ns,
            source=source,
        )

    def tick(
        self, *samples: Sample, unattributed: tuple[UnattributedTime, ...] = (), after_ns: int = SECOND_NS
    ) -> None:
        self.now_ns += after_ns
        timed = tuple(taken._replace(time_ns=self.now_ns) for taken in samples)
        self.aggregator.take(Snapshot(self.now_ns, SECOND_NS, timed, unattributed))

    def close(self, *unattributed: UnattributedTime) -> Profile:
        self.aggregator.close(unattributed)
        return self.profiles[-1]


def labels(aggregate: Aggregate) -> dict[str, str | int]:
    assert len(dict(aggregate.labels)) == len(aggregate.labels)
    return dict(aggregate.labels)


def totals(*profiles: Profile) -> tuple[int, int, int]:
    """Return samples, wall and CPU time of all aggregates, times in milliseconds."""
    found = [aggregate for profile in profiles for aggregate in profile.aggregates]
    return (
        sum(aggregate.count for aggregate in found),
        sum(aggregate.wall_ns for aggregate in found) // MS,
        sum(aggregate.cpu_ns for aggregate in found) // MS,
    )
