"""What a process spends on being profiled in each format, from the capture to the wire: CPU time, bytes, records.

50 threads with stacks of 43 frames, of which 8 move on between two snapshots; text and pprof in turns in one process,
all of its CPU time (gRPC's own threads too) less what it uses without the profiler. Text is exported each second, pprof
each ten, which are the defaults; a stretch is long enough for several exports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from counting_sink import CountingSink
from population import FRAMES, Stepping, Still
from record_cost import spend
from result import Result, main, median, middle_half, significant
from throughput import start

import splunk_profiler

THREADS, MOVING = 50, 8
FORMATS = {"text": 1_000, "pprof-gzip-base64": 10_000}  # with their export intervals, in ms


@dataclass(frozen=True, slots=True)
class Spent:
    """Per second of being profiled."""

    cpu_s: float
    size: float
    records: float


def spent(population: Stepping, data_format: str, interval_ms: int, seconds: float, export_ms: int) -> Spent:
    """One stretch in one format."""
    with CountingSink() as sink:
        config = splunk_profiler.Config(
            enabled=True,
            call_stack_interval_ms=interval_ms,
            export_interval_ms=export_ms,
            data_format=data_format,
            logs_endpoint=sink.url,
        )
        before = spend(seconds / 4, population.step)
        start(config, sink)
        then = sink.totals()
        cpu_s, wall_s = spend(seconds, population.step)
        now = sink.totals()
        splunk_profiler.stop()
        after = spend(seconds / 4, population.step)
    idle_share = (before[0] + after[0]) / (before[1] + after[1])
    return Spent(cpu_s / wall_s - idle_share, (now.size - then.size) / wall_s, (now.records - then.records) / wall_s)


def measure(quick: bool) -> Iterator[Result]:
    """At 1 s and at 10 ms."""
    with Still(THREADS - MOVING - 1, FRAMES), Stepping(MOVING, FRAMES) as population:
        for name, interval_ms in (("1 s", 1000), ("10 ms", 10)):
            seconds, rounds, faster = (1.0, 1, 20) if quick else (30.0, 3, 1)
            found: dict[str, list[Spent]] = {data_format: [] for data_format in FORMATS}
            for _ in range(rounds):
                for data_format, export_ms in FORMATS.items():
                    at_ms = max(interval_ms // faster, 10)
                    found[data_format].append(spent(population, data_format, at_ms, seconds, export_ms // faster))
            text, pprof = found.values()
            cpu = [ours.cpu_s / theirs.cpu_s for ours, theirs in zip(pprof, text, strict=True)]
            per_sample = 1e6 * interval_ms / 1000 / THREADS
            yield Result(
                f"CPU of profiling as pprof, {THREADS} threads at {name}, in times of text",
                median(cpu),
                "",
                0.25,
                details={
                    "middle_half": middle_half(cpu),
                    "text_us_per_sample": median(per_sample * one.cpu_s for one in text),
                    "pprof_us_per_sample": median(per_sample * one.cpu_s for one in pprof),
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
