"""The cost of events besides the timer's, as CPU time on the application's threads or on the profiler's.

What a raised exception takes longer where exceptions are sampled but it is not (CPython 3.12 and newer), and an object
made and freed where memory is profiled but it is no sample: each by turns with and without. What captures of waiting
tasks, looks for the holders of locks and looks at event loops take.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count, repeat
from typing import Any

from population import FRAMES, THREADS, BlockedThreads, descend
from result import Result, main, median, middle_half

from splunk_profiler.capture.events.blocked_loops import BlockedLoopSource
from splunk_profiler.capture.events.exceptions import ExceptionSource
from splunk_profiler.capture.events.lock_holders import LockHolderSource, lock_kinds
from splunk_profiler.capture.events.waiting_tasks import TaskEventSource
from splunk_profiler.capture.walker import WalkerChoice, make_ticker

RARE_EXCEPTION, RARE_BYTES = 1_000_000, 1 << 30  # mean distances of samples
TIMES = 50_000  # in a stretch
TASKS, WAITERS = (100, 10_000), 8


def native(exception_interval: int = 1) -> Any:
    choice, span, labels = WalkerChoice("native", "measured"), ContextVar[Any]("span"), ContextVar[Any]("labels")
    return make_ticker(choice, span, lambda _: None, 1024, labels_var=labels, exception_interval=exception_interval)


def raise_errors() -> None:
    for _ in repeat(None, TIMES):
        try:
            raise ValueError
        except ValueError:
            pass


def allocate() -> None:
    for _ in map(bytes, repeat(100, TIMES)):
        pass


def timed_ns(work: Callable[[], object]) -> int:
    began_ns = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began_ns


def result(name: str, times: list[float], unit: str) -> Result:
    return Result(name, median(times), unit, details={"middle_half": middle_half(times), "rounds": len(times)})


def compare(name: str, work: Callable[[], None], start: Callable[[], Callable[[], object]], rounds: int) -> Result:
    """Measure `work` with and without what `start` starts; that returns what stops it."""
    added = []
    for _ in range(rounds):
        without_ns = timed_ns(work)
        stop = start()
        with_ns = timed_ns(work)
        stop()
        added.append((with_ns - (without_ns + timed_ns(work)) / 2) / TIMES)
    return result(name, added, "ns")


def start_exceptions() -> Callable[[], object]:
    source = ExceptionSource(native(RARE_EXCEPTION))
    source.start()
    return source.stop


def start_allocations() -> Callable[[], Any]:
    ticker = native()
    ticker.start_allocations(RARE_BYTES, True)
    stop: Callable[[], Any] = ticker.stop_allocations
    return stop


def measure_source(
    name: str, make: Callable[..., Any], is_all: Callable[[Any], bool], rounds: int, *arguments: Any
) -> Result:
    """Measure what a source takes to look, from when it has found all that is there."""
    source = make(native(), *arguments, count(0, 1 << 40).__next__, lambda: 0)  # by this clock it is always due
    source.start()
    while not is_all(source.drain()):
        time.sleep(0.01)
    return result(name, [timed_ns(source.drain) / 1000 for _ in range(rounds)], "µs")


@contextmanager
def running_loop(tasks: int) -> Iterator[None]:
    """Run a loop on a thread, in which so many tasks wait."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        waiting = [asyncio.create_task(over.wait()) for _ in range(tasks)]
        loop.call_soon(ready.set)
        await asyncio.gather(*waiting)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    yield
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def measure_loops(rounds: int) -> Iterator[Result]:
    for tasks in TASKS:
        with running_loop(tasks):
            yield measure_source(f"capture of 64 of {tasks} waiting tasks", TaskEventSource, bool, rounds, 64, 1)
    ticker, times = native(), []
    source = BlockedLoopSource(ticker, 100_000_000)
    source.start()
    source.drain()
    with running_loop(1):
        for _ in range(rounds):
            before_ns = ticker.counters().look_ns_sum
            ticker.capture()
            times.append((ticker.counters().look_ns_sum - before_ns) / 1000)
            ticker.drain(0)
    yield result("look at one event loop", times, "µs")


def measure_locks(rounds: int) -> Iterator[Result]:
    kinds, lock, over = lock_kinds(), threading.Lock(), threading.Event()
    if kinds is None or sys.version_info < (3, 11):
        return

    def enter() -> None:
        with lock:
            over.wait()

    def see_all(found: Any) -> bool:
        return sum(each.event.count for each in found) == WAITERS

    name = f"look for the holder of a lock, {THREADS} threads, {WAITERS} wait"
    with BlockedThreads(THREADS - 2 - WAITERS, FRAMES):
        for _ in range(WAITERS + 1):
            threading.Thread(target=descend, args=(FRAMES - 4, enter)).start()
        yield measure_source(name, LockHolderSource, see_all, rounds, kinds)
        over.set()


def measure(quick: bool) -> Iterator[Result]:
    rounds = 3 if quick else 200
    if sys.version_info >= (3, 12):
        yield compare("raised exception that is not sampled", raise_errors, start_exceptions, rounds)
    yield compare("allocation and free that are not sampled", allocate, start_allocations, rounds)
    yield from measure_loops(rounds)
    yield from measure_locks(rounds)


if __name__ == "__main__":
    main(measure, __doc__)
