"""The cost of publishing to host profilers for each kind of context switch: stock, with both ABIs, without, in turns.

Sampling is off, so nothing else runs. Tasks and greenlets hold a span each, the loop between them has none, so every
switch has something new to publish. Each figure is the median of ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from result import Result, main, median, middle_half

import splunk_profiler

TASKS = 20
SETTLE_S = 0.3  # a start goes on for a tenth of a second on threads of its own; switches take a third longer then
PUBLISHING = splunk_profiler.Config(enabled=False, correlation="true", custom_labels="true")


@contextmanager
def own_span() -> Iterator[None]:
    """Make a span current for the caller."""
    with trace.get_tracer("benchmark").start_as_current_span("own"):
        yield


def attach_detach(count: int) -> None:
    """Attach and detach a context with a span."""
    attach, detach = context.attach, context.detach
    context_with_span = trace.set_span_in_context(trace.get_tracer("benchmark").start_span("attached"))
    for _ in range(count):
        detach(attach(context_with_span))


def start_as_current_span(count: int) -> None:
    """Start a span, make it current and end it, like an instrumentation."""
    start = trace.get_tracer("benchmark").start_as_current_span
    for _ in range(count):
        with start("one"):
            pass


def task_switch(module: str, count: int) -> None:
    """Run tasks that only yield to the next one."""

    async def task(turns: int) -> None:
        with own_span():
            for _ in range(turns):
                await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(task(count // TASKS) for _ in range(TASKS)))

    loop: asyncio.AbstractEventLoop = import_module(module).new_event_loop()
    loop.run_until_complete(tasks())
    loop.close()


def greenlet_switch(count: int) -> None:
    """Run two greenlets that only switch to the other one."""
    greenlet: Any = import_module("greenlet")
    here = greenlet.getcurrent()

    def body() -> None:
        with own_span():
            for _ in range(count // 2):
                here.switch()

    other = greenlet.greenlet(body)
    with own_span():
        for _ in range(count // 2 + 1):
            other.switch()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of switch.

    Attributes:
        name: name of the measure.
        body: makes so many switches.
        limit: limit of the ratio with / without publishing.
        count: switches in a stretch of some milliseconds.
    """

    name: str
    body: Callable[[int], None]
    limit: float | None
    count: int = 10_000


def kinds() -> Iterator[Kind]:
    """Return the kinds that this interpreter supports."""
    yield Kind("attach + detach", attach_detach, 1.25)
    yield Kind("start_as_current_span", start_as_current_span, 1.05, 500)
    yield Kind("asyncio task switch", partial(task_switch, "asyncio"), 1.10)
    if find_spec("uvloop"):
        yield Kind("uvloop task switch", partial(task_switch, "uvloop"), 1.10)
    if find_spec("greenlet"):
        yield Kind("greenlet switch", greenlet_switch, None)


def measure_switch_ns(kind: Kind, count: int) -> float:
    """Measure the CPU time of one switch in ns: the fastest of three stretches, which other processes disturb least."""
    stretches = []
    for _ in range(3):
        started = time.thread_time_ns()
        kind.body(count)
        stretches.append((time.thread_time_ns() - started) / count)
    return min(stretches)


def compare(kind: Kind, count: int, rounds: int) -> Iterator[Result]:
    """Measure stock, on, off, and so on; compare each with its neighbours in time."""
    stock, on, off = [], [], []
    for _ in range(rounds):
        stock.append(measure_switch_ns(kind, count))
        if not splunk_profiler.start(PUBLISHING):
            raise RuntimeError("publishing did not start")
        settled_s = time.monotonic() + SETTLE_S
        while time.monotonic() < settled_s:  # not asleep: that would change the processor's speed
            kind.body(kind.count // 10)
        on.append(measure_switch_ns(kind, count))
        splunk_profiler.stop()
        off.append(measure_switch_ns(kind, count))
    for name, times, limit in (("both ABIs published", on, kind.limit), ("published no more", off, 1.02)):
        ratios = [one / stock_ns for one, stock_ns in zip(times, stock, strict=True)]
        yield Result(
            f"{kind.name}, {name} / stock",
            median(ratios, 4),
            "times",
            limit,
            details={
                "ratio_middle_half": middle_half(ratios, 4),
                "cpu_ns": median(times),
                "stock_cpu_ns": median(stock),
                "rounds": rounds,
            },
        )


def measure(quick: bool) -> Iterator[Result]:
    """Measure every kind."""
    trace.set_tracer_provider(TracerProvider(resource=Resource.create({"service.name": "benchmark"})))
    for kind in kinds():
        count = kind.count // (10 if quick else 1)
        measure_switch_ns(kind, count)
        yield from compare(kind, count, 2 if quick else 50)


if __name__ == "__main__":
    main(measure, __doc__)
