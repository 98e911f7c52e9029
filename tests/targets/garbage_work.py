"""Work that leaves garbage: ``garbage_work.py SCENARIO SECONDS``, profiled as the environment says.

Prints, once it and the profiler have ended, the line ``ledger {…}``: the CPU time that the process has used from the
profiler's start to just before its stop and just after, the collections that CPython has counted by then, how many
callbacks the collector had meanwhile and has then, and what else the test of that scenario wants to know.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from functools import partial
from typing import Any

from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

TRACER = trace.get_tracer("collected")


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def leave_garbage(until: float) -> None:
    while time.monotonic() < until:
        Node()


def collect_all(until: float) -> None:
    while time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)


def two_threads(seconds: float) -> dict[str, Any]:
    """One leaves garbage in spans and with labels, one collects all of it again and again."""
    until = time.monotonic() + seconds
    spans = []

    def shop() -> None:
        with (
            TRACER.start_as_current_span("GET /basket") as span,
            splunk_profiler.labels(tenant="acme", endpoint="mine"),
        ):
            spans.append(f"{span.get_span_context().span_id:016x}")
            leave_garbage(until)

    threads = [threading.Thread(target=shop, name="shop"), threading.Thread(target=partial(collect_all, until))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"span": spans[0]}


def tasks(seconds: float) -> dict[str, Any]:
    """Tasks of one event loop, each with labels of its own; and one without."""

    async def request(number: int) -> None:
        with splunk_profiler.labels(request=number):
            for _ in range(5):
                compute(seconds / 25)
                await asyncio.sleep(0)

    async def unlabelled() -> None:
        for _ in range(5):
            compute_alone(seconds / 25)
            await asyncio.sleep(0)

    async def serve() -> None:
        await asyncio.gather(*(request(number) for number in range(4)), unlabelled())

    asyncio.run(serve())
    return {}


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


def compute_alone(seconds: float) -> None:
    compute(seconds)


def forking(seconds: float) -> dict[str, Any]:
    """A child that leaves garbage as well."""
    child = os.fork()
    if child == 0:
        begun = [*gc.callbacks]
        leave_garbage(time.monotonic() + seconds)
        splunk_profiler.stop()
        os._exit(0 if len(begun) == 1 and not gc.callbacks else 1)
    leave_garbage(time.monotonic() + seconds)
    return {"child": child, "status": os.waitpid(child, 0)[1]}


SCENARIOS = {work.__name__: work for work in (two_threads, tasks, forking)}


def counted() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]


def main(scenario: str, seconds: float) -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    callbacks = len(gc.callbacks)
    begun_ns, before = time.process_time_ns(), counted()
    facts = SCENARIOS[scenario](seconds)
    before_ns = time.process_time_ns() - begun_ns
    facts["collections"] = [after - first for after, first in zip(counted(), before, strict=True)]
    splunk_profiler.stop(10)
    facts["cpu_ns"] = [before_ns, time.process_time_ns() - begun_ns]
    facts["callbacks"] = [callbacks, len(gc.callbacks)]
    say("ledger", facts)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
