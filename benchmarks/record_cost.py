"""CPU time per thread sample, from the capture to the wire, without compression, wherever it is spent.

All CPU time of a process that does nothing but hold 33 threads for the profiler, and of its exporter, less what the
process uses without the profiler, divided by the thread samples that were due. In text and in pprof, with stacks that
hold still and with stacks that all move between two snapshots. A stretch begins after an export and has whole export
intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from counting_sink import CountingSink
from population import FRAMES, THREADS, BlockedThreads, SteppingThreads
from profiled_process import run_in_new_process, start, whole_cpu_s
from result import Result, main, median, middle_half

import splunk_profiler

INTERVAL_MS = 10
FORMATS = {"text": (1.0, 12), "pprof-gzip-base64": (10.0, 4)}  # default export interval in s, target in us


def measure_cpu(seconds: float, step: Callable[[], None] | None) -> tuple[float, float]:
    """Measure (CPU, wall) seconds of a stretch in which `step` is called once in each interval; None: nothing runs."""
    cpu, wall = whole_cpu_s(), time.perf_counter()
    if step is None:
        time.sleep(seconds)
        return whole_cpu_s() - cpu, time.perf_counter() - wall
    due = wall
    while (now := time.perf_counter()) < wall + seconds:
        step()
        due = max(due + INTERVAL_MS / 1000, now)
        time.sleep(max(0.0, due - time.perf_counter()))
    return whole_cpu_s() - cpu, time.perf_counter() - wall


@dataclass(frozen=True, slots=True)
class SampleCost:
    """CPU microseconds for each thread sample due, thread samples that arrived for each of those, and bytes."""

    cpu_us: float
    arrived: float
    size: float


def measure_samples(data_format: str, seconds: float, export_s: float, *, moves: bool) -> SampleCost:
    """Measure one stretch, between two without the profiler."""
    population = SteppingThreads(THREADS - 1, FRAMES) if moves else BlockedThreads(THREADS - 1, FRAMES)
    with CountingSink() as sink, population:
        step = population.step if isinstance(population, SteppingThreads) else None
        config = splunk_profiler.Config(
            enabled=True,
            call_stack_interval_ms=INTERVAL_MS,
            max_overhead="off",
            export_interval_ms=round(export_s * 1000),
            data_format=data_format,
            logs_endpoint=sink.url,
        )
        before = measure_cpu(seconds / 2, step)
        start(config, sink)
        totals = sink.totals()
        cpu_s, wall_s = measure_cpu(seconds, step)
        later = sink.totals()
        splunk_profiler.stop()
        after = measure_cpu(seconds / 2, step)
    idle_share = (before[0] + after[0]) / (before[1] + after[1])
    due = THREADS * wall_s * 1000 / INTERVAL_MS
    return SampleCost(
        1e6 * (cpu_s - idle_share * wall_s) / due,
        (later.samples - totals.samples) / due,
        (later.size - totals.size) / due,
    )


def measure(quick: bool) -> Iterator[Result]:
    """Measure both formats and both populations."""
    for data_format, (export_s, limit_us) in FORMATS.items():
        for moves in (export_s > 5,) if quick else (False, True):
            every_s = export_s / 10 if quick else export_s
            seconds, rounds = (every_s, 1) if quick else (10.0, 2 if export_s > 5 else 3)
            seen = [
                run_in_new_process(measure_samples, data_format, seconds, every_s, moves=moves) for _ in range(rounds)
            ]
            costs = [one.cpu_us for one in seen]
            where = f"{data_format.partition('-')[0]}, stacks that {'all moved' if moves else 'hold still'}"
            yield Result(
                f"CPU per thread sample, {where}",
                median(costs),
                "us",
                limit_us,
                details={
                    "middle_half": middle_half(costs),
                    "rounds": rounds,
                    "bytes_per_sample": median(one.size for one in seen),
                    "arrived_of_100": 100 * median(one.arrived for one in seen),
                },
            )


if __name__ == "__main__":
    main(measure, __doc__)
