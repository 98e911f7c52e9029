"""Whether a running profiler makes OpenTelemetry's attach and detach slower: with and without, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from counting_sink import CountingSink
from opentelemetry import context
from result import Result, main, median, middle_half
from throughput import start

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


def measure(quick: bool) -> Iterator[Result]:
    """At the default interval, for each walker."""
    pairs, rounds = (1000, 2) if quick else (20_000, 15)
    with CountingSink() as sink:
        for walker in ("native", "portable"):
            config = splunk_profiler.Config(
                enabled=True, walker=walker, logs_endpoint=sink.url, call_stack_interval_ms=100 if quick else 1000
            )
            without: list[float] = []
            within: list[float] = []
            for _ in range(rounds):
                without.append(best_ns(pairs))
                start(config, sink)
                within += [best_ns(pairs), best_ns(pairs)]
                splunk_profiler.stop()
                without.append(best_ns(pairs))
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
