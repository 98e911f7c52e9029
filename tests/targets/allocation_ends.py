"""Samples every allocation of threads that work, while the process forks, ends, or has further interpreters.

``allocation_ends.py SCENARIO``, which prints ``over`` at its end.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import sys
import threading
from typing import Any

from splunk_profiler import _walker

ENDLESS = 10**9


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


def use_interpreters(ticker: Any) -> None:
    """Allocate in interpreters that have GILs of their own from CPython 3.12 on."""
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
    allocate(20_000)
    for thread in threads:
        thread.join()
    ticker.stop_allocations()
    again = make_ticker()
    again.start_allocations(1)
    allocate(100)
    assert again.drain_allocations()[0]


def main() -> None:
    """Run a scenario."""
    ticker = make_ticker()
    ticker.start_allocations(1, True)
    {"ending": end_at_work, "forks": fork_at_work, "interpreters": use_interpreters}[sys.argv[1]](ticker)
    print("over", flush=True)


if __name__ == "__main__":
    main()
