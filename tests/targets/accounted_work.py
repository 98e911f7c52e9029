"""Work whose CPU and thread times are known: ``accounted_work.py SCENARIO SECONDS``, profiled as the environment says.

Prints, once it and the profiler have ended, the line ``ledger {…}``: the CPU time that the process has used and the sum
of its threads' lifetimes from the profiler's start to just before its stop and just after, and what else the test of
that scenario wants to know.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util._once import Once

import splunk_profiler

TRACER = trace.get_tracer("accounted")


class EndRecorder:
    """A thread-local object that records its thread's end when it is destroyed: after the last line of Python.

    Args:
        record: takes the instant (ns).
    """

    def __init__(self, record: Callable[[int], None]) -> None:
        self._record = record

    def __del__(self) -> None:
        self._record(time.monotonic_ns())


class Ledger:
    """Total lifetime of all threads.

    Attributes:
        stopped: set once the profiler has stopped.
    """

    def __init__(self) -> None:
        self._started_ns: list[int] = []
        self._ended_ns: list[int] = []
        self._own = threading.local()
        self.facts: dict[str, Any] = {}
        self.stopped = threading.Event()
        self._cpu_ns = time.process_time_ns()
        self._started_ns.append(time.monotonic_ns())  # this thread, which does not end

    def start(self, body: Callable[[], None]) -> threading.Thread:
        """Start a thread that runs `body`."""

        def run() -> None:
            self._own.end = EndRecorder(self._ended_ns.append)
            body()

        thread = threading.Thread(target=run)
        self._started_ns.append(time.monotonic_ns())
        thread.start()
        return thread

    def stop(self, timeout_s: float) -> None:
        """Stop the profiler; note the totals before and after, as it takes its last times in between."""
        before = self._so_far()
        splunk_profiler.stop(timeout_s)
        self.facts |= {"before": before, "after": self._so_far()}
        self.facts |= {"started": len(self._started_ns), "ended": len(self._ended_ns)}
        self.stopped.set()

    def _so_far(self) -> dict[str, int]:
        running = len(self._started_ns) - len(self._ended_ns)
        return {
            "cpu_ns": time.process_time_ns() - self._cpu_ns,
            "wall_ns": sum(self._ended_ns) + running * time.monotonic_ns() - sum(self._started_ns),
        }


def compute(seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    until = clock() + seconds
    while clock() < until:
        sum(number * number for number in range(3_000))


def busy(ledger: Ledger, seconds: float) -> None:
    """Threads that never wait, until all have worked; none ends before the profiler does."""
    worked = threading.Barrier(4)

    def run() -> None:
        compute(seconds)
        worked.wait()
        ledger.stopped.wait()

    for _ in range(worked.parties - 1):
        ledger.start(run)
    worked.wait()


def waiting(ledger: Ledger, seconds: float) -> None:
    """Many threads that wait, and one that works a little."""
    over = [threading.Event() for _ in range(40)]
    threads = [ledger.start(each.wait) for each in over]  # type: ignore[arg-type]  # the result is not used
    compute(seconds)
    for each, thread in zip(over, threads, strict=True):  # one after another: between two snapshots, and not at one
        each.set()
        thread.join()
        compute(0.01)


def short_lived(ledger: Ledger, seconds: float) -> None:
    """Threads that live for a second, and wait or work in it."""
    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until:
        turn += 1
        lengths = [0.6 + 0.05 * (turn % 5) + 0.017 * number for number in range(25)]  # each ends at another time
        threads = [ledger.start(partial(compute, lengths.pop()))]
        threads += [ledger.start(partial(time.sleep, length)) for length in lengths]
        for thread in threads:
            thread.join()


def tasks(ledger: Ledger, seconds: float) -> None:
    """Tasks of one event loop, each a request with a part that works and one that waits."""

    async def request(number: int) -> None:
        with TRACER.start_as_current_span("GET") as root:
            root.update_name(f"GET /items/{number}")
            with TRACER.start_as_current_span("query") as query:
                ids[f"{query.get_span_context().span_id:016x}"] = f"{root.get_span_context().span_id:016x}"
                query_items(seconds / 20)
            await asyncio.sleep(0.01)

    async def serve() -> None:
        await asyncio.gather(*(request(number) for number in range(10)))

    ids: dict[str, str] = {}
    asyncio.run(serve())
    ledger.facts["roots"] = ids
    waiting(ledger, seconds / 2)


def query_items(seconds: float) -> None:
    """Compute below a function of a library, and so much that there are samples of it, however busy the machine is."""
    Once().do_once(partial(compute, seconds, time.thread_time))


def many_spans(ledger: Ledger, seconds: float) -> None:
    """Some ten thousand spans each second."""
    count = [0] * 50
    begun = time.monotonic()

    def serve(worker: int) -> None:
        until = begun + seconds - worker * 0.02  # each ends at another time between two snapshots
        while time.monotonic() < until:
            with TRACER.start_as_current_span("GET /"):
                count[worker] += 1
                time.sleep(0.004)

    for thread in [ledger.start(lambda worker=worker: serve(worker)) for worker in range(len(count))]:  # type: ignore[misc]
        thread.join()
    ledger.facts["spans"] = sum(count)
    ledger.facts["resident_kib"] = resident_kib()


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def forking(ledger: Ledger, seconds: float) -> None:
    """A child that works on its own."""
    child = os.fork()
    if child == 0:
        compute(seconds / 2)
        splunk_profiler.stop()
        os._exit(0)
    compute(seconds / 2, time.thread_time)  # beside so much, the end of the start, which is sampled too, is little
    ledger.facts["child"] = [child, os.waitpid(child, 0)[1]]


def changing(ledger: Ledger, seconds: float) -> None:
    """A child that starts the profiler anew, with another format."""
    child = os.fork()
    if child == 0:
        splunk_profiler.stop()
        config = splunk_profiler.Config(
            enabled=True,
            call_stack_interval_ms=10,
            logs_endpoint=os.environ["SPLUNK_PROFILER_LOGS_ENDPOINT"],
            data_format="pprof-gzip-base64",
        )
        assert splunk_profiler.start(config)
        compute(seconds)
        splunk_profiler.stop()
        os._exit(0)
    ledger.facts["child"] = [child, os.waitpid(child, 0)[1]]


SCENARIOS = {work.__name__: work for work in (busy, waiting, short_lived, tasks, many_spans, forking, changing)}


def main(scenario: str, seconds: float) -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    ledger = Ledger()
    SCENARIOS[scenario](ledger, seconds)
    ledger.stop(60)
    say("ledger", ledger.facts)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
