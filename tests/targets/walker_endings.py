"""A process that ends with a walker at work at 5 kHz: ``walker_endings.py HOW``. Prints "ready" once it samples."""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextvars import ContextVar
from functools import partial

from splunk_profiler import _walker as walker

Ticker = walker.Ticker[str, "tuple[str, ...]"]
current: ContextVar[object] = ContextVar("current")


def make() -> Ticker:
    return walker.Ticker(
        context_var=current,
        max_depth=50,
        make_frame=lambda code, _offset, _globals: code.co_name,
        make_stack=lambda frames, _truncated: frames,
        ring_size=4,
        trace_filter=None,
    )


def holding(*values: object) -> tuple[object, ...]:
    return values


def busy(over: threading.Event) -> None:
    """Compute; on CPython 3.10 wait: daemon threads that compute crash one of a hundred processes at its end."""
    while not over.is_set():
        if sys.version_info < (3, 11):
            over.wait()
        sum(range(100))


def worker(ticker: Ticker) -> None:
    while True:
        ticker.drain(1_000_000)


def main(how: str) -> None:
    ticker = make()
    over = threading.Event()
    run = threading.Thread(target=ticker.run, args=(200_000,), daemon=True)
    run.start()
    others = [threading.Thread(target=busy, args=(over,), daemon=how != "main thread first") for _ in range(3)]
    for thread in others:
        thread.start()
    while not ticker.drain(1_000_000_000):
        pass
    if how in {"return", "sys.exit", "os._exit"}:
        threading.Thread(target=worker, args=(ticker,), daemon=True).start()
    print("ready", flush=True)
    if how == "sys.exit":
        sys.exit(0)
    elif how == "os._exit":
        os._exit(0)
    elif how == "unhandled":
        raise ValueError(how)
    elif how == "main thread first":
        threading.Timer(0.05, over.set).start()
    elif how == "stopped and dropped":
        for _ in range(40):
            ticker.stop()
            run.join()
            ticker = make()
            run = threading.Thread(target=ticker.run, args=(50_000,), daemon=True)
            run.start()
            ticker.drain(1_000_000_000)
    elif how == "collected":
        for _ in range(200):
            holder: list[object] = []
            mine = walker.Ticker(
                context_var=current,
                max_depth=50,
                make_frame=partial(holding, holder),
                make_stack=partial(holding, holder),
                ring_size=4,
                trace_filter=None,
            )
            holder.append(mine)
            mine.capture()
            assert len(mine.drain(0)) == 1
            mine.capture()
            del mine, holder
        gc.collect()
        alive = sum(isinstance(thing, walker.Ticker) for thing in gc.get_objects())
        assert alive == 1, alive


if __name__ == "__main__":
    main(sys.argv[1])
