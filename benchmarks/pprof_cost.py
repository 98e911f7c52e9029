"""CPU time for one sample of a profile in pprof's format, compression included.

6,000 samples of 500 stacks of 40 frames, with 6 labels each; three of a sample's labels occur nowhere else. New stacks
in each round have no cached encodings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from result import Result, main, median, middle_half

from splunk_profiler.capture.events import registered_kinds
from splunk_profiler.config import Config
from splunk_profiler.formats import pprof
from splunk_profiler.model import Frame, Stack
from splunk_profiler.samples import Aggregate, Profile

SAMPLES, STACKS, FRAMES = 6000, 500, 40
PERIOD_NS = 10_000_000
START_NS = 1_780_000_000_000_000_000


def profile(seed: int) -> Profile:
    """Make a profile; the same for a seed."""
    source = random.Random(seed)
    places = [
        Frame(f"shop.part{i % 30}.Part", f"step_{i}", f"/srv/shop/part{i % 30}.py", 3 * i + line, 3 * i)
        for i in range(700)
        for line in (1, 2)
    ]
    stacks = [Stack(tuple(source.choices(places, k=FRAMES)), truncated=False) for _ in range(STACKS)]
    aggregates = []
    for number in range(SAMPLES):
        labels: tuple[tuple[str, str | int], ...] = (
            ("source.event.time", START_NS // 1_000_000 + number),
            ("thread.id", 0x7F0000000000 + 4096 * (number % 50)),
            ("thread.name", f"worker-{number % 50}"),
            ("thread.state", "RUNNABLE" if number % 3 else "WAITING"),
            ("trace_id", f"{source.getrandbits(128):032x}"),
            ("span_id", f"{source.getrandbits(64):016x}"),
        )
        aggregates.append(Aggregate(source.choice(stacks), labels, 1, PERIOD_NS, PERIOD_NS // 2))
    return Profile(START_NS, 10_000_000_000, PERIOD_NS, tuple(aggregates), kinds=registered_kinds(Config()))


def measure(quick: bool) -> Iterator[Result]:
    """Measure whole encodings."""
    costs_us, size = [], 0
    for seed in range(1 if quick else 9):
        made = profile(seed)
        began = time.thread_time()
        size = len(pprof.encode_whole(made).gzipped)
        costs_us.append(1e6 * (time.thread_time() - began) / SAMPLES)
    yield Result(
        "CPU to encode pprof, per sample with labels of its own",
        median(costs_us),
        "us",
        details={"middle_half": middle_half(costs_us), "samples": SAMPLES, "bytes": size},
    )


if __name__ == "__main__":
    main(measure, __doc__)
