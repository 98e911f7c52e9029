"""The cost of a period of samples in each format: CPU time to encode, and bytes on the wire.

50 threads with stacks of 40 frames: 8 work in spans of 100 ms and move at each snapshot, the others wait. The samples
are made before, so only the encoding is measured: in text one record for each sample, in pprof one for the period, in
which samples of equal stack and labels are one. The figures exclude the aggregation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource
from result import Result, main, median, middle_half

from splunk_profiler.capture.events import registered_kinds
from splunk_profiler.config import Config
from splunk_profiler.export.otlp.sample_records import SampleEncoder
from splunk_profiler.formats import pprof, text
from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.samples import Aggregate, Profile, Sample, Thread, ThreadSample

THREADS, BUSY, FRAMES = 50, 8, 40
PERIOD_NS = 10_000_000_000
SPAN_NS = 100_000_000
BATCH = 300  # records of text in a request of about 1 MiB
START_NS = 1_780_000_000_000_000_000

SERVER = [Frame(f"server.layer{i}.Layer", "__call__", f"/srv/venv/server/layer{i}.py", 10 + i, i) for i in range(25)]
WORK = [
    Frame(f"shop.part{i % 12}.Part", f"step_{i}", f"/srv/shop/part{i % 12}.py", 3 * i + line, 3 * i)
    for i in range(100)
    for line in (1, 2, 3)
]
WAITING = tuple(
    Frame("server.pool.Worker", f"wait_{i}", "/srv/venv/server/pool.py", 10 * i, 10 * i - 5)
    for i in range(1, FRAMES + 1)
)


@dataclass(frozen=True, slots=True)
class Period:
    """The same ten seconds in both forms."""

    samples: tuple[Sample, ...]
    profile: Profile


def stacks(source: random.Random, snapshots: int) -> Iterator[tuple[int, int, Stack, SpanRef | None]]:
    """Yield (snapshot, thread, stack, span) of all samples; a waiting thread keeps its stack."""
    interval_ns = PERIOD_NS // snapshots
    idle = [Stack(WAITING, truncated=False) for _ in range(THREADS)]
    spans: dict[tuple[int, int], SpanRef] = {}
    for snapshot in range(snapshots):
        for thread in range(THREADS):
            if thread >= BUSY:
                yield snapshot, thread, idle[thread], None
                continue
            key = (thread, snapshot * interval_ns // SPAN_NS)
            if key not in spans:
                spans[key] = SpanRef(source.getrandbits(128) | 1, source.getrandbits(64) | 1, 1)
            # Within a request the lower part of a stack stays, the upper moves; some places are hotter than others.
            handlers = random.Random(hash(key)).choices(WORK, k=10)
            leaves = [WORK[int(len(WORK) * source.random() ** 3)] for _ in range(FRAMES - len(SERVER) - len(handlers))]
            yield snapshot, thread, Stack((*leaves, *handlers, *SERVER), truncated=False), spans[key]


def period(snapshots: int) -> Period:
    """Make a period of so many snapshots; the same at every call."""
    source = random.Random(snapshots)
    interval_ns = PERIOD_NS // snapshots
    samples = []
    counts: dict[tuple[int, tuple[Frame, ...], SpanRef | None], list[int]] = {}
    first: dict[tuple[int, tuple[Frame, ...], SpanRef | None], tuple[Stack, int]] = {}
    for snapshot, number, stack, span in stacks(source, snapshots):
        busy = number < BUSY
        thread = Thread(number + 1, f"worker-{number}", 0x7F0000000000 + 4096 * number, 30_000 + number)
        seen = ThreadSample(thread, stack, snapshot * interval_ns, 0, 0, busy, "")
        time_ns = START_NS + snapshot * interval_ns
        samples.append(Sample(time_ns, interval_ns, seen, span, instant_ns=snapshot * interval_ns))
        key = (number, stack.frames, span)
        counts.setdefault(key, [0])[0] += 1
        first.setdefault(key, (stack, time_ns))
    aggregates = []
    for key, (count,) in counts.items():
        number, _, span = key
        stack, time_ns = first[key]
        labels: list[tuple[str, str | int]] = [
            ("source.event.period", interval_ns // 1_000_000),
            ("thread.id", 0x7F0000000000 + 4096 * number),
            ("thread.os.id", 30_000 + number),
            ("thread.name", f"worker-{number}"),
            ("thread.state", "RUNNABLE" if span else "WAITING"),
        ]
        if span is not None:
            labels += [("trace_id", f"{span.trace_id:032x}"), ("span_id", f"{span.span_id:016x}")]
        labels.append(("source.event.time", time_ns // 1_000_000))
        wall_ns = count * interval_ns
        aggregates.append(Aggregate(stack, tuple(labels), count, wall_ns, wall_ns if span else 0))
    return Period(
        tuple(samples), Profile(START_NS, PERIOD_NS, interval_ns, tuple(aggregates), kinds=registered_kinds(Config()))
    )


def encode_text(made: Period) -> int:
    """Return the size of the requests with one record for each sample."""
    encoder = SampleEncoder(Resource.get_empty, text.BodyFormatter().parts)
    samples = made.samples
    return sum(len(encoder.encode(samples[first : first + BATCH])) for first in range(0, len(samples), BATCH))


def encode_pprof(made: Period) -> int:
    """Return the size of the bodies of the period; the requests add some hundred bytes."""
    return sum(len(pprof.body(part)) for part in pprof.parts(made.profile))


def measure_encoding(encode: Callable[[Period], int], snapshots: int) -> tuple[float, int]:
    """Measure (CPU seconds, bytes) of one encoding. New stacks have no cached encodings."""
    made = period(snapshots)
    began = time.thread_time()
    size = encode(made)
    return time.thread_time() - began, size


def measure(quick: bool) -> Iterator[Result]:
    """Measure both intervals, text and pprof in turns."""
    rounds = 1 if quick else 7
    for name, snapshots in (("1 s", 10), ("10 ms", 100 if quick else 1000)):
        pairs = [
            (measure_encoding(encode_text, snapshots), measure_encoding(encode_pprof, snapshots)) for _ in range(rounds)
        ]
        cpu = [theirs[0] / ours[0] for ours, theirs in pairs]
        (_, text_bytes), (_, pprof_bytes) = pairs[0]
        samples = THREADS * snapshots
        yield Result(
            f"CPU to encode pprof, {THREADS} threads at {name}, in times of text",
            median(cpu),
            "",
            0.25,
            details={
                "middle_half": middle_half(cpu),
                "text_us_per_sample": median(1e6 * ours[0] / samples for ours, _ in pairs),
                "pprof_us_per_sample": median(1e6 * theirs[0] / samples for _, theirs in pairs),
                "rounds": rounds,
                "samples": samples,
                "aggregates": len(period(snapshots).profile.aggregates),
            },
        )
        yield Result(
            f"bytes of pprof, {THREADS} threads at {name}, in times of text",
            pprof_bytes / text_bytes,
            "",
            0.05,
            details={"text_bytes": text_bytes, "pprof_bytes": pprof_bytes},
        )


if __name__ == "__main__":
    main(measure, __doc__)
