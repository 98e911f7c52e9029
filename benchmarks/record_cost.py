"""CPU time per exported text record, from the capture to the wire, without compression.

All CPU time of a process (gRPC's own threads too) that does nothing but hold 33 threads for the profiler, less what
it uses without the profiler, divided by the records that arrived. Once with stacks that hold still, once with
stacks that all move between two snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from counting_sink import CountingSink
from population import FRAMES, THREADS, BlockedThreads, SteppingThreads
from result import Result, main, median, middle_half
from throughput import start

import splunk_profiler

INTERVAL_MS = 10


def measure_cpu(seconds: float, step: Callable[[], None]) -> tuple[float, float]:
    """Measure (CPU, wall) seconds of a stretch in which `step` is called once in each interval."""
    cpu, wall = time.process_time(), time.perf_counter()
    due = wall
    while (now := time.perf_counter()) < wall + seconds:
        step()
        due = max(due + INTERVAL_MS / 1000, now)
        time.sleep(max(0.0, due - time.perf_counter()))
    return time.process_time() - cpu, time.perf_counter() - wall


def measure_rounds(sink: CountingSink, step: Callable[[], None], seconds: float, rounds: int) -> Iterator[float]:
    """Measure microseconds per record, one figure for each round."""
    config = splunk_profiler.Config(
        enabled=True,
        call_stack_interval_ms=INTERVAL_MS,
        max_overhead="off",
        export_interval_ms=200,
        logs_endpoint=sink.url,
    )
    for _ in range(rounds):
        before = measure_cpu(seconds / 2, step)
        start(config, sink)
        records = sink.totals().records
        cpu_s, wall_s = measure_cpu(seconds, step)
        records = sink.totals().records - records
        splunk_profiler.stop()
        after = measure_cpu(seconds / 2, step)
        idle_share = (before[0] + after[0]) / (before[1] + after[1])
        yield 1e6 * (cpu_s - idle_share * wall_s) / records


def measure(quick: bool) -> Iterator[Result]:
    """Measure both populations."""
    seconds, rounds = (0.5, 1) if quick else (6.0, 5)
    with CountingSink() as sink:
        with BlockedThreads(THREADS - 1, FRAMES):
            still = list(measure_rounds(sink, lambda: None, seconds, rounds))
        with SteppingThreads(THREADS - 1, FRAMES) as population:
            moving = list(measure_rounds(sink, population.step, seconds, rounds))
        totals = sink.totals()
    for name, seen in (("hold still", still), ("all moved", moving)):
        yield Result(
            f"CPU per exported record, stacks that {name}",
            median(seen),
            "us",
            12,
            details={
                "middle_half": middle_half(seen),
                "rounds": rounds,
                "bytes_per_record": totals.size // totals.records,
                "records": totals.records,
            },
        )


if __name__ == "__main__":
    main(measure, __doc__)
