"""The cost of garbage collection events, and of reading user labels in snapshots.

Collections: CPU time of an empty collection of the young generation, 43 frames deep, without a callback, with an empty
one in C, and with the walkers' (collections that are only counted, and those that are kept with their stack); and of a
program that only makes garbage. Labels: time with the GIL per thread of a snapshot, with and without reading them.
Compared figures are measured in turns in one run.
"""

from __future__ import annotations

import contextvars
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, Thread

from population import FRAMES
from result import Result, main, median, middle_half

from splunk_profiler.capture.portable import PortableTicker
from splunk_profiler.capture.portable_gc import CollectionLog
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.capture.walker import Ticker, WalkerChoice, make_ticker
from splunk_profiler.model import Stack

NEVER_NS = 1 << 62
COLLECTIONS = 200  # in a stretch; fewer than a walker can keep
THREADS = 100
span: contextvars.ContextVar[object] = contextvars.ContextVar("span")
other: contextvars.ContextVar[object] = contextvars.ContextVar("other")
labels: contextvars.ContextVar[object] = contextvars.ContextVar("labels")

Callback = Callable[[str, dict[str, int]], object]


class Node:
    """An object that refers to itself, so only the collector frees it."""

    __slots__ = ("itself",)

    def __init__(self) -> None:
        self.itself = self


def native(min_interval_ns: int, labels_var: contextvars.ContextVar[object] | None = labels) -> Ticker:
    """Make a native ticker that records collections."""
    from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

    ticker: Ticker = _walker.Ticker(
        context_var=span,
        labels_var=labels_var,
        max_depth=1024,
        make_frame=Symbolizer().frame,
        make_stack=Stack,
        ring_size=4,
        min_collection_interval_ns=min_interval_ns,
    )
    return ticker


def portable(min_interval_ns: int) -> Ticker:
    """Make a portable ticker."""
    log = CollectionLog(span, labels, 1024, min_interval_ns)
    return PortableTicker(
        context_of=lambda _: None,
        max_depth=1024,
        make_frame=Symbolizer().frame,
        make_stack=Stack,
        ring_size=4,
        collections=log,
    )


def call_at_depth(frames: int, call: Callable[[], float]) -> float:
    """Call `call` below so many frames."""
    return call_at_depth(frames - 1, call) if frames else call()


def collect() -> float:
    """Measure the CPU time of one empty collection in nanoseconds."""
    start_ns = time.thread_time_ns()
    for _ in range(COLLECTIONS):
        gc.collect(0)
    return (time.thread_time_ns() - start_ns) / COLLECTIONS


def make_garbage() -> float:
    """Measure the CPU time to leave a quarter of a million garbage objects, in milliseconds."""
    start_ns = time.thread_time_ns()
    for _ in range(250_000):
        Node()
    return (time.thread_time_ns() - start_ns) / 1e6


def run_with_callback(callback: Callback | None, work: Callable[[], float]) -> float:
    """Return the result of `work` while the collector has this callback and no other."""
    others, gc.callbacks[:] = [*gc.callbacks], [] if callback is None else [callback]
    try:
        return work()
    finally:
        gc.callbacks[:] = others


def collections(rounds: int) -> Iterator[Result]:
    """Measure empty collections."""
    tickers = {
        "native, counted": native(NEVER_NS),
        "native, kept": native(0),
        "portable, counted": portable(NEVER_NS),
        "portable, kept": portable(0),
    }
    nothing: dict[str, object] = {}
    callbacks: dict[str, Callback | None] = {"none": None, "one in C that does nothing": nothing.setdefault}
    callbacks |= {name: ticker.on_gc_event for name, ticker in tickers.items()}
    found: dict[str, list[float]] = {name: [] for name in callbacks}
    work = partial(call_at_depth, FRAMES - 2, collect)
    gc.disable()
    for _ in range(rounds):
        for name, callback in callbacks.items():
            found[name].append(run_with_callback(callback, work))
            if (ticker := tickers.get(name)) is not None:
                ticker.drain_collections()
    gc.enable()
    plain = median(found.pop("none"))
    for name, times in found.items():
        details = {"plain_ns": plain, "middle_half": middle_half(times), "rounds": rounds}
        yield Result(f"callback of a collection: {name}", median(times) - plain, "ns", details=details)


def measure_garbage_program(rounds: int) -> Iterator[Result]:
    """Measure a program that only makes garbage."""
    ticker = make_ticker(WalkerChoice("native", "measured"), span, lambda _: None, 1024, labels_var=labels)
    ratios = []
    count = sum(generation["collections"] for generation in gc.get_stats())
    plain = []
    for number in range(rounds):
        both = [None, ticker.on_gc_event] if number % 2 else [ticker.on_gc_event, None]
        times = {callback is None: run_with_callback(callback, make_garbage) for callback in both}
        ratios.append(times[False] / times[True])
        plain.append(times[True])
        ticker.drain_collections()
    count = sum(generation["collections"] for generation in gc.get_stats()) - count
    rate = count / (2 * rounds) / (median(plain) / 1000)
    details = {"collections_per_second": round(rate), "middle_half": middle_half(ratios), "rounds": rounds}
    yield Result("CPU of a program that only leaves garbage, noticed / not", median(ratios), "times", details=details)


def measure_label_lookup(rounds: int) -> Iterator[Result]:
    """Measure snapshots of many waiting threads."""
    for name, variables in {
        "no variables": (),
        "in a span": (span,),
        "in a span, with another variable": (span, other),
        "in a span, with labels": (span, labels),
    }.items():
        stop_event = Event()

        def wait(
            variables: tuple[contextvars.ContextVar[object], ...] = variables, stop_event: Event = stop_event
        ) -> None:
            for variable in variables:
                variable.set(variable)
            stop_event.wait()

        threads = [Thread(target=wait) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        without, with_labels = native(0, None), native(0)
        differences = []
        held: list[float] = []
        for _ in range(rounds):
            times = [_held_ns(ticker) / THREADS for ticker in (without, with_labels)]
            held.append(times[0])
            differences.append(times[1] - times[0])
        stop_event.set()
        for thread in threads:
            thread.join()
        details = {"without_ns": median(held), "middle_half": middle_half(differences), "rounds": rounds}
        yield Result(f"GIL held per thread to look for labels: {name}", median(differences), "ns", details=details)


def _held_ns(ticker: Ticker) -> float:
    times = []
    for _ in range(20):
        before = ticker.counters().gil_held_ns_sum
        ticker.capture()
        times.append(ticker.counters().gil_held_ns_sum - before)
        ticker.drain(0)
    return statistics.median(times)


def measure(quick: bool) -> Iterator[Result]:
    """Measure all cases."""
    rounds = 3 if quick else 200
    yield from collections(rounds)
    yield from measure_garbage_program(max(rounds // 5, 2))
    yield from measure_label_lookup(rounds)


if __name__ == "__main__":
    main(measure, __doc__)
