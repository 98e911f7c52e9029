"""The memory of an aggregated profile in which nearly every sample has its own labels.

100 threads with stacks of 40 frames, which move at each snapshot, every 10 ms for ten seconds, each time in another
span: 10,000 spans a second. The measure counts Python's memory blocks for the aggregator's sums and the profile of
them, then for the profile and its encoding, when the sums are freed.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

from result import Result, main, significant

from splunk_profiler.formats import pprof
from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.samples import Profile, Sample, Snapshot, Thread, ThreadSample

THREADS, FRAMES = 100, 40
PERIOD_NS = 10_000_000
START_NS = 1_780_000_000_000_000_000

PLACES = [Frame(f"shop.part{number % 12}.Part", f"step_{number}", "/srv/shop/part.py", number) for number in range(300)]


def snapshot(source: random.Random, number: int) -> Snapshot:
    """Make a snapshot of all threads, each in its own span and at its own line."""
    time_ns = START_NS + number * PERIOD_NS
    samples = []
    for index in range(THREADS):
        stack = Stack((*source.choices(PLACES, k=3), *PLACES[: FRAMES - 3]), truncated=False)
        thread = Thread(index + 1, f"worker-{index}", 0x7F0000000000 + 4096 * index, 30_000 + index)
        seen = ThreadSample(
            thread, stack, 0, 0, 0, running=True, waiting_on="", wall_delta_ns=PERIOD_NS, cpu_delta_ns=1
        )
        span = SpanRef(source.getrandbits(128) | 1, source.getrandbits(64) | 1, 1, source.getrandbits(64) | 1, "GET /")
        samples.append(Sample(time_ns, PERIOD_NS, seen, span))
    return Snapshot(time_ns, PERIOD_NS, tuple(samples))


def measure(quick: bool) -> Iterator[Result]:
    """Measure one period, in which no label occurs twice."""
    snapshots = 20 if quick else 1000
    source = random.Random(7)
    profiles: list[Profile] = []
    aggregator = Aggregator(profiles.extend, interval_ns=snapshots * PERIOD_NS, monotonic_ns=lambda: START_NS)
    tracemalloc.start()
    for number in range(snapshots):
        aggregator.take(snapshot(source, number))
    aggregator.close(())
    _, gathered = tracemalloc.get_traced_memory()
    del aggregator
    (profile,) = profiles
    tracemalloc.reset_peak()
    parts = pprof.parts(profile)
    _, encoded = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    samples = THREADS * snapshots
    assert sum(aggregate.count for aggregate in profile.aggregates) == samples
    yield Result(
        "memory of a profile, 10,000 spans a second",
        max(gathered, encoded) / (1 << 20),
        "MiB",
        20,
        details={
            "gathering": significant(gathered / (1 << 20)),
            "encoding": significant(encoded / (1 << 20)),
            "samples": samples,
            "aggregates": len(profile.aggregates),
            "with_fewer_labels": profile.dropped_labels,
            "bytes_sent": sum(len(pprof.body(part)) for part in parts),
        },
    )


if __name__ == "__main__":
    main(measure, __doc__)
