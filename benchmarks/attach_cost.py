"""Whether a running profiler makes OpenTelemetry's attach and detach slower: with and without, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from counting_sink import CountingSink
from opentelemetry import context
from result import Result, main, median, middle_half
from throughput import in_new_process, start

import splunk_profiler


def pair_ns(pairs: int) -> float:
    """Nanoseconds of one attach and detach."""
    entered = context.set_value("benchmark", 1)
    started = time.perf_counter_ns()
    for _ in range(pairs):
        context.detach(context.attach(entered))
    return (time.perf_counter_ns() - started) / pairs


def best_ns(pairs: int) -> float:
    """The fastest of several stretches: what is left when nothing else interferes."""
    return min(pair_ns(pairs) for _ in range(10))


def compare(walker: str, interval_ms: int, pairs: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return what `best_ns` gives with and without the profiler, in ABBA rounds."""
    within: list[float] = []
    without: list[float] = []
    with CountingSink() as sink:
        config = splunk_profiler.Config(
            enabled=True, walker=walker, logs_endpoint=sink.url, call_stack_interval_ms=interval_ms
        )
        for _ in range(rounds):
            without.append(best_ns(pairs))
            start(config, sink)
            within += [best_ns(pairs), best_ns(pairs)]
            splunk_profiler.stop()
            without.append(best_ns(pairs))
    return within, without


def measure(quick: bool) -> Iterator[Result]:
    """Compare at the default interval, for each walker."""
    interval_ms, pairs, rounds = (100, 1000, 2) if quick else (1000, 20_000, 15)
    for walker in ("native", "portable"):
        within, without = in_new_process(compare, walker, interval_ms, pairs, rounds)
        yield Result(
            f"attach + detach, profiler on / off, {walker}",
            median(within) / median(without),
            "times",
            1.02 if walker == "native" else None,
            details={
                "on_ns": median(within),
                "off_ns": median(without),
                "on_middle_half": middle_half(within),
                "off_middle_half": middle_half(without),
            },
        )


if __name__ == "__main__":
    main(measure, __doc__)
