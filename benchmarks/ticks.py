"""The delivery and latency of ticks of a 10 ms interval beside 8 busy threads.

The native ticker and the portable one take turns in the same process. A process that does nothing but sleep until the
same deadlines runs beside them: what it misses, the machine was too busy for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

from capture_cost import native_ticker
from population import FRAMES, BlockedThreads, run_busy_threads
from result import Result, main, significant

from splunk_profiler.capture.walker import Ticker, WalkerChoice, make_ticker

PERIOD_NS = 10_000_000
BUSY = 8
IDLE = 24
latency = attrgetter("latency_ns")


def spin(_number: int, is_over: Callable[[], bool]) -> None:
    """Run plain Python code that releases the GIL only on request."""
    value = 0
    while not is_over():
        for step in range(2000):
            value = (value * 31 + step) % 1_000_003


def measure_latencies(ticker: Ticker, ticks: int) -> list[int]:
    """Run `ticker` for `ticks` deadlines and return the latencies of delivered ticks."""
    thread = threading.Thread(target=ticker.run, args=(PERIOD_NS,), daemon=True)
    thread.start()
    late: list[int] = []
    while ticker.counters().due < ticks:
        late += [latency(raw) for raw in ticker.drain(1_000_000_000)]
    ticker.stop()
    thread.join()
    late += [latency(raw) for raw in ticker.drain(0)]
    return late


def run_sleeper() -> None:
    """Sleep until each deadline while standard input is open, then print the latencies."""
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    due = missed = 0
    late: list[int] = []
    deadline = time.monotonic_ns() + PERIOD_NS
    while not ended.is_set():
        time.sleep(max(0, deadline - time.monotonic_ns()) / 1e9)
        behind = time.monotonic_ns() - deadline
        skipped = behind // PERIOD_NS
        due, missed = due + 1 + skipped, missed + skipped
        late.append(behind - skipped * PERIOD_NS)
        deadline += (skipped + 1) * PERIOD_NS
    late.sort()
    p99_ms = late[int(len(late) * 0.99)] / 1e6
    print(json.dumps({"woken_of_100": significant(100 * (due - missed) / due), "p99_ms": significant(p99_ms)}))


@contextmanager
def measure_sleeper() -> Iterator[dict[str, float]]:
    """Run the sleeping process; its latencies are there after the block."""
    seen: dict[str, float] = {}
    process = subprocess.Popen(
        [sys.executable, __file__, "sleep"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield seen
    output, _ = process.communicate()
    seen.update(json.loads(output))


def measure(quick: bool) -> Iterator[Result]:
    """Measure both tickers, in turns."""
    rounds, ticks = (1, 10) if quick else (5, 400)
    has_pending_calls = sys.version_info >= (3, 12)  # before, the ticker pauses Python
    seen: dict[str, tuple[list[int], dict[str, int]]] = {}
    with measure_sleeper() as control, BlockedThreads(IDLE, FRAMES), run_busy_threads(BUSY, spin):
        for _ in range(rounds):
            for name in ("native", "portable"):
                ticker = (
                    native_ticker()
                    if name == "native"
                    else make_ticker(WalkerChoice("portable", "measured"), None, lambda _: None, 1024)
                )
                late, sums = seen.setdefault(name, ([], {"due": 0, "captured": 0, "by_pending_call": 0}))
                late += measure_latencies(ticker, ticks)
                for counter in sums:
                    sums[counter] += getattr(ticker.counters(), counter)
    for name, (late, sums) in seen.items():
        late.sort()
        yield Result(
            f"ticks delivered of 100 at 10 ms beside {BUSY} busy threads, {name}",
            100 * sums["captured"] / sums["due"],
            "ticks",
            99 if name == "native" else None,
            at_least=True,
            details={**sums, "a_process_that_only_sleeps": control},
        )
        yield Result(
            f"latency of a tick, 99th percentile, {name}",
            late[int(len(late) * 0.99)] / 1e6,
            "ms",
            1 if has_pending_calls and name == "native" else None,
            details={
                "median_us": significant(late[len(late) // 2] / 1000),
                "mean_us": significant(sum(late) / len(late) / 1000),
                "worst_ms": significant(late[-1] / 1e6),
            },
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["sleep"]:
        run_sleeper()
    else:
        main(measure, __doc__)
