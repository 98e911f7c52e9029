"""The loss of a CPU-bound service to the profiler: the same process with and without it, in turns (ABBA).

8 threads serve made-up requests inside spans, 24 wait; every record is exported to a collector in another process.
Three figures for each case: requests per second of wall time; CPU time of the whole process per request, which counts
the profiler's own threads too; and the CPU time of those threads alone, which other processes disturb least.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from counting_sink import CountingSink, Totals
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from population import APPLICATION_PREFIX, FRAMES, BlockedThreads, descend, run_busy_threads
from result import Result, main, median, middle_half, significant

import splunk_profiler
from splunk_profiler.export import resource  # noqa: F401  # loads gRPC, which beside busy threads takes seconds
from splunk_profiler.export.otlp import exporter as otlp  # noqa: F401  # loads gRPC, which beside busy threads takes seconds

BUSY = 8
IDLE = 24
P = ParamSpec("P")
T = TypeVar("T")
ORDER = [{"number": number, "name": f"item {number}", "price": number * 1.19} for number in range(40)]


class Service:
    """A service that counts the requests of its threads."""

    def __init__(self) -> None:
        self._served = [0] * BUSY
        self._tracer = trace.get_tracer("benchmark")

    def work(self, number: int, is_over: Callable[[], bool]) -> None:
        """Serve until the end."""
        while not is_over():
            with self._tracer.start_as_current_span("request"):
                descend(20, self._handle)
            self._served[number] += 1

    def served(self) -> int:
        """Return the number of requests so far."""
        return sum(self._served)

    def _handle(self) -> None:
        order: list[dict[str, Any]] = json.loads(json.dumps(ORDER))
        order.sort(key=lambda item: item["name"])
        total = 0.0
        for _ in range(20):
            total += sum(item["price"] * 0.81 for item in order)
        if total <= 0:
            raise ValueError("an order without a price")


@dataclass(frozen=True, slots=True)
class Segment:
    """Requests per second, CPU seconds per request, and the core share of other threads in a stretch of time."""

    rate: float
    cpu_s: float
    others: float


def measure_segment(service: Service, seconds: float) -> Segment:
    """Measure the service for `seconds`."""
    served, wall, cpu, own = service.served(), time.perf_counter(), time.process_time(), application_cpu_s()
    time.sleep(seconds)
    count, own = service.served() - served, application_cpu_s() - own
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Segment(count / wall, cpu / count, (cpu - own) / wall)


def application_cpu_s() -> float:
    """Return the CPU seconds of the main thread and the application's threads."""
    own = [thread for thread in threading.enumerate() if thread.name.startswith(("MainThread", APPLICATION_PREFIX))]
    return sum(
        time.clock_gettime((~(thread.native_id or 0) << 3) | 6) for thread in own
    )  # the kernel's id of its clock


def run_in_new_process(body: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `body` in a fresh process: settings of the first start hold for the life of a process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(body, *arguments, **named).result()


def start(config: splunk_profiler.Config, sink: CountingSink) -> None:
    """Start the profiler and wait for the first records, after which gRPC is loaded and connected."""
    before = sink.totals().records
    if not splunk_profiler.start(config):
        raise RuntimeError("the profiler did not start")
    deadline = time.monotonic() + 30
    while sink.totals().records == before:
        if time.monotonic() > deadline:
            raise RuntimeError("no record arrived")
        time.sleep(0.05)


def compare(
    walker: str, interval_ms: int, export_ms: int, seconds: float, rounds: int
) -> tuple[dict[str, list[float]], Totals]:
    """Return ratios of each ABBA round, and the counts of the sink.

    ``rate`` and ``cpu`` are with / without, ``noise`` is without / without, ``others`` the profiler's share of a core.
    """
    trace.set_tracer_provider(TracerProvider())
    service = Service()
    ratios: dict[str, list[float]] = {"rate": [], "cpu": [], "noise": [], "others": []}
    with CountingSink() as sink, BlockedThreads(IDLE, FRAMES), run_busy_threads(BUSY, service.work):
        config = splunk_profiler.Config(
            enabled=True,
            call_stack_interval_ms=interval_ms,
            max_overhead="off",
            export_interval_ms=export_ms,
            logs_endpoint=sink.url,
            walker=walker,
        )
        measure_segment(service, seconds)
        for _ in range(rounds):
            first = measure_segment(service, seconds)
            start(config, sink)
            with_profiler = [measure_segment(service, seconds), measure_segment(service, seconds)]
            splunk_profiler.stop()
            last = measure_segment(service, seconds)
            ratios["rate"].append(sum(part.rate for part in with_profiler) / (first.rate + last.rate))
            ratios["cpu"].append(sum(part.cpu_s for part in with_profiler) / (first.cpu_s + last.cpu_s))
            ratios["noise"].append(last.rate / first.rate)
            ratios["others"].append(sum(part.others for part in with_profiler) / 2)
        return ratios, sink.totals()


def results(name: str, ratios: dict[str, list[float]], limit: float | None, arrived: Totals) -> Iterator[Result]:
    """Return the loss as a share, from the median over the rounds."""
    spread = [100 * (1 - ratio) for ratio in reversed(middle_half(ratios["rate"], 6))]
    yield Result(
        f"throughput lost, {name}",
        100 * (1 - median(ratios["rate"], 6)),
        "%",
        limit,
        details={
            "middle_half": [round(value, 2) for value in spread],
            "without_profiler_middle_half": [
                round(100 * (1 - r), 2) for r in reversed(middle_half(ratios["noise"], 6))
            ],
            "rounds": len(ratios["rate"]),
            "records": arrived.records,
            "snapshots": arrived.snapshots,
            "in_spans": arrived.in_spans,
        },
    )
    yield Result(
        f"CPU per request added, {name}",
        100 * (median(ratios["cpu"], 6) - 1),
        "%",
        limit,
        details={"middle_half": [round(100 * (ratio - 1), 2) for ratio in middle_half(ratios["cpu"], 6)]},
    )

    yield Result(
        f"CPU of the profiler's and gRPC's threads, {name}",
        100 * median(ratios["others"]),
        "% of a core",
        limit,
        details={"middle_half": [significant(100 * share) for share in middle_half(ratios["others"])]},
    )


def measure(quick: bool) -> Iterator[Result]:
    """Compare at 1 s and at 10 ms with the native walker, and at 10 ms with the portable one."""
    cases: list[tuple[str, str, int, float | None]]
    cases = [("native, 1 s", "native", 1000, 0.2)]
    cases += [] if quick else [("native, 10 ms", "native", 10, 5.0), ("portable, 10 ms", "portable", 10, None)]
    for name, walker, interval_ms, limit in cases:
        at_ms, export_ms = (min(interval_ms, 100), 100) if quick else (interval_ms, 1000)
        seconds, rounds = (0.3, 1) if quick else (4.0, 8 if interval_ms == 1000 else 5)
        ratios, arrived = run_in_new_process(compare, walker, at_ms, export_ms, seconds, rounds)
        yield from results(name, ratios, limit, arrived)


if __name__ == "__main__":
    main(measure, __doc__)
