"""The cost of profiling a process in each format, from the capture to the wire: CPU time, bytes, records.

50 threads with stacks of 43 frames, of which 8 move on between two snapshots; text and pprof in turns, each stretch
in a process of its own. Text is exported each second, pprof each ten, which are the defaults; a stretch is long enough
for several exports.

What counts is the CPU time of the exporter and of all threads that were not there before the profiler: at 1 s it is
less than that by which two stretches of the application differ. A capture that one of the application's threads takes,
as it does on CPython 3.12 and later, is not in it; `record_cost` has that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from counting_sink import CountingSink
from measured_service import exporters_cpu_s
from population import FRAMES, BlockedThreads, SteppingThreads
from profiled_process import run_in_new_process, start, whole_cpu_s
from record_cost import measure_cpu
from result import Result, main, median, middle_half, significant

import splunk_profiler

THREADS, MOVING = 50, 8
FORMATS = {"text": 1_000, "pprof-gzip-base64": 10_000}  # with their export intervals, in ms


@dataclass(frozen=True, slots=True)
class ProfilingCost:
    """The cost per second: CPU of the profiler's threads and its exporter, of the exporter alone, bytes and records."""

    cpu_s: float
    exporter_s: float
    size: float
    records: float


def cpu_s(threads: list[threading.Thread]) -> float:
    """Return the CPU seconds of these threads."""
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]
    return sum(time.clock_gettime(clock) for clock in clocks)


def measure_cost(data_format: str, interval_ms: int, seconds: float, export_ms: int) -> ProfilingCost:
    """Measure one stretch in one format."""
    with (
        BlockedThreads(THREADS - MOVING - 1, FRAMES),
        SteppingThreads(MOVING, FRAMES) as population,
        CountingSink() as sink,
    ):
        applications = threading.enumerate()
        config = splunk_profiler.Config(
            enabled=True,
            call_stack_interval_ms=interval_ms,
            max_overhead="off",
            export_interval_ms=export_ms,
            data_format=data_format,
            logs_endpoint=sink.url,
        )
        start(config, sink)
        before, totals_before = (whole_cpu_s() - cpu_s(applications), exporters_cpu_s(os.getpid())), sink.totals()
        _, wall_s = measure_cpu(seconds, population.step)
        after, totals_after = (whole_cpu_s() - cpu_s(applications), exporters_cpu_s(os.getpid())), sink.totals()
        splunk_profiler.stop()
    return ProfilingCost(
        (after[0] - before[0]) / wall_s,
        (after[1] - before[1]) / wall_s,
        (totals_after.size - totals_before.size) / wall_s,
        (totals_after.records - totals_before.records) / wall_s,
    )


def measure(quick: bool) -> Iterator[Result]:
    """Compare at 1 s and at 10 ms."""
    for name, interval_ms in (("1 s", 1000), ("10 ms", 10))[: 1 if quick else 2]:
        seconds, rounds, faster = (0.5, 1, 20) if quick else (30.0, 3, 1)
        at_ms = max(interval_ms // faster, 10)
        found: dict[str, list[ProfilingCost]] = {data_format: [] for data_format in FORMATS}
        for _ in range(rounds):
            for data_format, export_ms in FORMATS.items():
                stretch = run_in_new_process(measure_cost, data_format, at_ms, seconds, export_ms // faster)
                found[data_format].append(stretch)
        text, pprof = found.values()
        cpu = [ours.cpu_s / theirs.cpu_s for ours, theirs in zip(pprof, text, strict=True)]
        per_sample = 1e6 * at_ms / 1000 / THREADS
        yield Result(
            f"CPU of profiling as pprof, {THREADS} threads at {name}, in times of text",
            median(cpu),
            "",
            0.25,
            details={
                "middle_half": middle_half(cpu),
                "text_us_per_sample": median(per_sample * one.cpu_s for one in text),
                "pprof_us_per_sample": median(per_sample * one.cpu_s for one in pprof),
                "text_exporter_us": median(per_sample * one.exporter_s for one in text),
                "pprof_exporter_us": median(per_sample * one.exporter_s for one in pprof),
                "rounds": rounds,
            },
        )
        yield Result(
            f"bytes on the wire as pprof, {THREADS} threads at {name}, in times of text",
            significant(sum(one.size for one in pprof) / sum(one.size for one in text)),
            "",
            0.05,
            details={
                "text_bytes_per_s": median(one.size for one in text),
                "pprof_bytes_per_s": median(one.size for one in pprof),
                "text_records_per_s": median(one.records for one in text),
                "pprof_records_per_s": median(one.records for one in pprof),
            },
        )


if __name__ == "__main__":
    main(measure, __doc__)
