"""Requests of known length, some in traces that snapshot profiling selects: ``snapshot_service.py SCENARIO``.

A trace id ends in zeros where the trace is to be selected, and in ones where it is not, at a probability of 0.5.
Prints, once all and the profiler have ended, the line ``ledger {…}``: of each request the trace, how long it took, the
CPU time of its thread and the attributes of its span; which spans have the attribute; and the threads of the profiler.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import count
from typing import TYPE_CHECKING, Any

from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

import splunk_profiler

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH_S = 0.4
WANTED = threading.local()
TRACER = trace.get_tracer("snapshots")


class Ids(RandomIdGenerator):
    """Trace ids that say whether the trace is to be selected."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def generate_trace_id(self) -> int:
        return os.getpid() << 64 | next(self._numbers) << 28 | (0 if WANTED.selected else 0xFFFFFFF)


class Ledger:
    """Trace id, times and attributes of each request, by its name."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    @contextmanager
    def request(self, name: str, *, selected: bool) -> Iterator[None]:
        """A request on this thread."""
        WANTED.selected = selected
        began_ns, used_ns = time.time_ns(), time.thread_time_ns()
        with TRACER.start_as_current_span(name) as span:
            yield
        self.facts[name] = {
            "trace_id": f"{span.get_span_context().trace_id:032x}",
            "wall_ns": time.time_ns() - began_ns,
            "cpu_ns": time.thread_time_ns() - used_ns,
            "attributes": dict(getattr(span, "attributes", {})),
        }


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(number * number for number in range(1_000))
        # Threads that only compute keep the GIL from the portable walker, whose samples would be few on a busy machine.
        time.sleep(0.0005)


def selected_work() -> None:
    compute(LENGTH_S)


def helping_work() -> None:
    compute(LENGTH_S)


def other_work() -> None:
    compute(LENGTH_S)


def untraced_work() -> None:
    compute(LENGTH_S)


def together(*bodies: Callable[[], None]) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def threads(ledger: Ledger) -> None:
    """A selected trace, which has a second thread work for it, beside one that is not selected and work without any."""

    def selected() -> None:
        with ledger.request("selected", selected=True), TRACER.start_as_current_span("step"):
            context = copy_context()
            with ThreadPoolExecutor(1) as pool:
                helping = pool.submit(context.run, helping_work)
                selected_work()
                helping.result()

    def other() -> None:
        with ledger.request("other", selected=False):
            other_work()

    together(selected, other, untraced_work)


def tasks(ledger: Ledger) -> None:
    """Two tasks of one loop, turn by turn."""

    async def steps(work: Callable[[], None]) -> None:
        for _ in range(20):
            work()
            await asyncio.sleep(0)

    def selected_step() -> None:
        compute(LENGTH_S / 20)

    def other_step() -> None:
        compute(LENGTH_S / 20)

    async def selected() -> None:
        with ledger.request("selected", selected=True):
            await steps(selected_step)

    async def other() -> None:
        with ledger.request("other", selected=False):
            await steps(other_step)

    async def serve() -> None:
        await asyncio.gather(selected(), other())

    asyncio.run(serve())


def forking(ledger: Ledger) -> None:
    """A process that is forked in the middle of a selected trace, and has one of its own in the child."""
    with ledger.request("selected", selected=True):
        child = os.fork()
        if child:
            selected_work()
            ledger.facts["child"] = [child, os.waitpid(child, 0)[1]]
            return
        WANTED.selected = True
        detached = threading.Thread(target=lambda: _own_request(ledger))
        detached.start()
        detached.join()
        splunk_profiler.stop(10)
        os._exit(0)


def _own_request(ledger: Ledger) -> None:
    with ledger.request("own", selected=True):
        helping_work()


def again(ledger: Ledger) -> None:
    """Stopped and started: spans of before, which have not ended, are of no concern."""
    WANTED.selected = True
    TRACER.start_span("never ends")
    splunk_profiler.stop(10)
    assert splunk_profiler.start()
    with ledger.request("selected", selected=True):
        selected_work()


SCENARIOS = {work.__name__: work for work in (threads, tasks, forking, again)}


def main(scenario: str) -> None:
    load_exporter()
    provider = TracerProvider(id_generator=Ids())
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    assert splunk_profiler.start()
    ledger = Ledger()
    SCENARIOS[scenario](ledger)
    own = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("splunk-profiler"))
    splunk_profiler.stop(10)
    marked = [
        span.name for span in exporter.get_finished_spans() if "splunk.snapshot.profiling" in (span.attributes or ())
    ]
    say("ledger", {**ledger.facts, "marked": marked, "own": own})


if __name__ == "__main__":
    main(sys.argv[1])
