"""Work that raises exceptions: ``raising_work.py SCENARIO``, profiled as the environment says.

Prints, once it and the profiler have ended, the line ``ledger {…}``: the names of the tools of `sys.monitoring` while
the profiler ran and afterwards, and what else the test of that scenario wants to know.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

TRACER = trace.get_tracer("raised")
WARM_UP_S = 1.5  # imports raise many: a second later, few are all recorded again
CARD = "4111-1111-1111-1111"


class OrderError(Exception):
    """Says more than it should."""

    def __str__(self) -> str:
        return CARD

    __repr__ = __str__


class ChildError(Exception):
    """Raised in a forked child only."""


def order() -> None:
    raise OrderError(CARD)


def look_up() -> None:
    {}[CARD]  # type: ignore[index]


def parse() -> None:
    int(CARD)


def work_until(time_s: float) -> None:
    while time.monotonic() < time_s:
        sum(range(1000))


def often(work: Callable[[], None], count: int) -> None:
    for _ in range(count):
        with suppress(Exception):
            work()


def service() -> dict[str, Any]:
    """Two threads: one in a span with labels, one without."""
    spans = []

    def shop() -> None:
        with TRACER.start_as_current_span("POST /order") as span, splunk_profiler.labels(tenant="acme"):
            spans.append(f"{span.get_span_context().span_id:016x}")
            often(order, 20)
            often(look_up, 10)

    threads = [threading.Thread(target=shop, name="shop"), threading.Thread(target=often, args=(parse, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"span": spans[0]}


def forking() -> dict[str, Any]:
    """A child that raises as well, and a parent that goes on."""

    def fail() -> None:
        raise ChildError

    often(order, 5)
    child = os.fork()
    if child == 0:
        inside = tools()
        work_until(time.monotonic() + WARM_UP_S)
        often(fail, 7)
        work_until(time.monotonic() + 0.3)
        splunk_profiler.stop(10)
        os._exit(0 if inside.count("splunk-profiler") == 1 and "splunk-profiler" not in tools() else 1)
    status = os.waitpid(child, 0)[1]
    often(order, 5)
    return {"child": child, "status": status}


def signals() -> dict[str, Any]:
    """Signal handlers that raise and catch, in the middle of a storm of exceptions; at the end one that raises."""
    handled = []

    def handle(_signal: int, _frame: object) -> None:
        often(parse, 3)
        handled.append(1)
        if len(handled) == 500:
            raise InterruptedError

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    raised = 0
    with suppress(InterruptedError):
        while True:
            with suppress(OrderError):
                raised += 1
                order()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"raised": raised, "handled": len(handled)}


def memory() -> dict[str, Any]:
    """Memory that runs out, often enough to be seen where one in ten exceptions is recorded."""

    def fill() -> None:
        kept = []
        while True:
            kept.append([None] * 50_000)

    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115, PTH123
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), hard))
    caught = 0
    for _ in range(80):
        try:
            fill()
        except MemoryError:
            caught += 1
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return {"caught": caught}


def restarting() -> dict[str, Any]:
    """The profiler starts and stops while threads raise."""
    ends = time.monotonic() + 3

    def storm() -> None:
        while time.monotonic() < ends:
            often(order, 100)

    threads = [threading.Thread(target=storm) for _ in range(3)]
    for thread in threads:
        thread.start()
    restarts = 0
    while time.monotonic() < ends:
        splunk_profiler.stop(10)
        restarts += splunk_profiler.start()
    for thread in threads:
        thread.join()
    return {"restarts": restarts}


def interpreters() -> dict[str, Any]:
    """Another interpreter raises; it has tools of its own."""
    module = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    created = module.create()
    code = (
        "import sys\nfor _ in range(100):\n    try: int('x')\n    except ValueError: pass\n"
        "for tool in range(6): assert sys.monitoring.get_tool(tool) is None\n"
    )
    failed = module.run_string(created, code)
    module.destroy(created)
    often(order, 5)
    return {"failed": str(failed)}


SCENARIOS = {work.__name__: work for work in (service, forking, signals, memory, restarting, interpreters)}


def tools() -> list[str | None]:
    monitoring: Any = getattr(sys, "monitoring", None)
    return [] if monitoring is None else [monitoring.get_tool(tool_id) for tool_id in range(6)]


def main(scenario: str) -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    during = tools()
    work_until(time.monotonic() + WARM_UP_S)
    facts = SCENARIOS[scenario]()
    work_until(time.monotonic() + 0.3)
    splunk_profiler.stop(10)
    say("ledger", {**facts, "during": during, "after": tools()})


if __name__ == "__main__":
    main(sys.argv[1])
