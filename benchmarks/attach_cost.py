"""The cost of OpenTelemetry's attach and detach with and without a running profiler, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from counting_sink import CountingSink
from opentelemetry import context
from profiled_process import run_in_new_process, start
from result import Result, main, median, middle_half

import splunk_profiler


def measure_pair_ns(pairs: int) -> float:
    """Measure one attach and detach in nanoseconds."""
    context_with_value = context.set_value("benchmark", 1)
    started = time.perf_counter_ns()
    for _ in range(pairs):
        context.detach(context.attach(context_with_value))
    return (time.perf_counter_ns() - started) / pairs


def min_pair_ns(pairs: int) -> float:
    """Return the time of the fastest of several stretches, which other processes disturb least."""
    return min(measure_pair_ns(pairs) for _ in range(10))


def compare(walker: str, interval_ms: int, pairs: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return what `min_pair_ns` gives with and without the profiler, in ABBA rounds."""
    with_profiler: list[float] = []
    without_profiler: list[float] = []
    with CountingSink() as sink:
        config = splunk_profiler.Config(
            enabled=True, walker=walker, logs_endpoint=sink.url, call_stack_interval_ms=interval_ms
        )
        for _ in range(rounds):
            without_profiler.append(min_pair_ns(pairs))
            start(config, sink)
            with_profiler += [min_pair_ns(pairs), min_pair_ns(pairs)]
            splunk_profiler.stop()
            without_profiler.append(min_pair_ns(pairs))
    return with_profiler, without_profiler


def measure(quick: bool) -> Iterator[Result]:
    """Compare at the default interval, for each walker."""
    interval_ms, pairs, rounds = (100, 1000, 1) if quick else (1000, 20_000, 15)
    for walker in ("native", "portable"):
        with_profiler, without_profiler = run_in_new_process(compare, walker, interval_ms, pairs, rounds)
        yield Result(
            f"attach + detach, profiler on / off, {walker}",
            median(with_profiler) / median(without_profiler),
            "times",
            1.02 if walker == "native" else None,
            details={
                "on_ns": median(with_profiler),
                "off_ns": median(without_profiler),
                "on_middle_half": middle_half(with_profiler),
                "off_middle_half": middle_half(without_profiler),
            },
        )


if __name__ == "__main__":
    main(measure, __doc__)
