"""Samples allocations of threads that work, while the process forks, ends, is stopped, or has other interpreters.

``allocation_ends.py SCENARIO``, which prints ``over`` at its end. Where it says nothing else, it samples all of them.
``allocation_ends.py millions N`` makes N million objects, to be run with a sanitizer.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

from allocators import allocators, set_allocator

from splunk_profiler import _walker
from splunk_profiler.capture.events.allocations import AllocationEventSource

ENDLESS = 10**9
OBJECTS = 2  # PYMEM_DOMAIN_OBJ
DEBUG_STATE_BYTES = 48  # of an allocator in a debug build


def make_ticker() -> Any:
    """Return a ticker that has sampled nothing yet."""
    return _walker.Ticker(
        context_var=None,
        max_depth=50,
        make_frame=lambda code, _offset, _globals: code.co_name,
        make_stack=lambda frames, _truncated: frames,
        ring_size=4,
        threads={},
    )


class Cycle:
    """An object that only the collector frees, and that allocates when it does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        allocate(3)


def allocate(count: int) -> None:
    """Make objects of several types."""
    for number in range(count):
        bytes(number % 900)
        _ = [1] * (number % 50), {number: number}, str(number), [each * 2 for each in "ab"]


def start_threads(count: int) -> None:
    """Start threads that allocate until the process ends."""
    for _ in range(count):
        threading.Thread(target=allocate, args=(ENDLESS,), daemon=True).start()


def end_at_work(ticker: Any) -> None:
    """Leave the interpreter to end with hooks, threads, finalisers and blocks in use."""
    sys.modules["kept"] = [bytes(500) for _ in range(3_000)]  # type: ignore[assignment]
    _ = [Cycle() for _ in range(500)]
    del _
    gc.collect()
    ticker.drain_allocations()
    start_threads(2)
    allocate(5_000)


def fork_at_work(ticker: Any) -> None:
    """Fork with and without Python's hooks; children sample on their own."""
    start_threads(2)
    for fork in (os.fork, ctypes.PyDLL(None).fork) * 10:
        child = fork()
        if child == 0:
            allocate(100)
            own = make_ticker()
            own.start_allocations(1, True)
            allocate(300)
            own.drain_allocations()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        ticker.drain_allocations()


@contextmanager
def working_interpreters() -> Iterator[list[threading.Thread]]:
    """Allocate in two interpreters, which have GILs of their own from CPython 3.12 on, beside the block."""
    names = ("_interpreters", "_xxsubinterpreters")
    module: Any = importlib.import_module(next(name for name in names if importlib.util.find_spec(name)))

    def work() -> None:
        interpreter = module.create()
        run = module.exec if hasattr(module, "exec") else module.run_string
        run(interpreter, "for number in range(100_000): bytes(number % 900); [1] * (number % 50)")
        module.destroy(interpreter)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()


def churn(sizes: list[int]) -> None:
    """Make objects of these sizes, and nothing beside them."""
    for size in sizes:
        bytes(size)


def count_beside_interpreters(ticker: Any) -> None:
    """Add up what is sampled here, beside interpreters that allocate without our GIL."""
    ticker.set_sample_bytes(2_000)
    counted, rounds, sizes = 0, 0, [700] * 500
    with working_interpreters() as threads:
        while rounds < 150 or any(thread.is_alive() for thread in threads):
            churn(sizes)
            rounds += 1
            samples, _ = ticker.drain_allocations()
            counted += sum(each.event_amount for each in samples if "churn" in each.thread.stack)
    print("bytes", counted, rounds * len(sizes) * (sys.getsizeof(b"") + 700), flush=True)


def stop_process(ticker: Any) -> None:
    """Compare the time in captures with the CPU time, while the process is stopped again and again."""
    ticker.stop_allocations()
    parent, stopper = os.getpid(), os.fork()
    if stopper == 0:
        for _ in range(20):
            os.kill(parent, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(parent, signal.SIGCONT)
        os._exit(0)
    again, began_ns = make_ticker(), time.process_time_ns()
    again.start_allocations(1)
    while os.waitpid(stopper, os.WNOHANG) == (0, 0):
        allocate(10)
        again.drain_allocations()
    print("spent", again.counters().event_ns_sum, time.process_time_ns() - began_ns, flush=True)


def remove_hooks(ticker: Any) -> None:
    """Set allocators from before the hooks, as other libraries may do, until hooks cannot be added again."""
    ticker.stop_allocations()
    before, contexts, messages = allocators()[OBJECTS], [], Messages()
    logging.getLogger("splunk_profiler").addHandler(messages)
    source = AllocationEventSource(make_ticker(), 1, tracks_live=True)
    source.start()
    for _ in range(10):
        state = ctypes.string_at(before[0], DEBUG_STATE_BYTES) if before[0] else b""
        contexts.append(ctypes.create_string_buffer(state))  # another one each time; only a debug build reads it
        set_allocator(OBJECTS, [ctypes.addressof(contexts[-1]), *before[1:]])
        allocate(10)
        source.drain()
    print("log", *messages.found)
    print("lines", len(messages.found))
    source.stop()
    set_allocator(OBJECTS, before)


class Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def make_millions(ticker: Any) -> None:
    """Make and free as many objects as are asked for, some of which are sampled, mostly in C code."""
    ticker.set_sample_bytes(50_000)
    for _ in range(int(sys.argv[2]) * 10):
        kept = list(map(bytes, repeat(100, 50_000)))
        deque(map(bytes, repeat(700, 50_000)), maxlen=0)
        ticker.drain_allocations()
        del kept


def use_interpreters(ticker: Any) -> None:
    """Allocate beside other interpreters, and again once they have ended."""
    with working_interpreters():
        allocate(20_000)
    ticker.stop_allocations()
    again = make_ticker()
    again.start_allocations(1)
    allocate(100)
    assert again.drain_allocations()[0]


def main() -> None:
    """Run a scenario."""
    ticker = make_ticker()
    ticker.start_allocations(1, True)
    scenarios: dict[str, Callable[[Any], None]] = {
        "ending": end_at_work,
        "forks": fork_at_work,
        "interpreters": use_interpreters,
        "millions": make_millions,
        "own_gils": count_beside_interpreters,
        "stopped": stop_process,
        "refused": remove_hooks,
    }
    scenarios[sys.argv[1]](ticker)
    print("over", flush=True)


if __name__ == "__main__":
    main()
