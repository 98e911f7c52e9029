"""A process that ends with a walker at work at 5 kHz: ``walker_endings.py HOW``. Prints "ready" once it samples."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any

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
        threads={threading.get_ident(): threading.current_thread()},
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


class Sampled:
    """This process, with a walker at work; `over` ends its busy threads."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.start(200_000)

    def start(self, period_ns: int) -> None:
        self.ticker = make()
        self.run = threading.Thread(target=self.ticker.run, args=(period_ns,), daemon=True)
        self.run.start()


def unhandled(_sampled: Sampled) -> None:
    raise ValueError("unhandled")


def main_thread_first(sampled: Sampled) -> None:
    threading.Timer(0.05, sampled.over.set).start()


def stopped_and_dropped(sampled: Sampled) -> None:
    for _ in range(40):
        sampled.ticker.stop()
        sampled.run.join()
        sampled.start(50_000)
        sampled.ticker.drain(1_000_000_000)


def collected(_sampled: Sampled) -> None:
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


class Sleepy:
    """A standard output whose flush, at the end of the interpreter, releases the GIL."""

    closed = False

    def flush(self) -> None:
        time.sleep(0.001)


def after_c_code(sampled: Sampled) -> None:
    """End while the ticker waits for the GIL, which C code has until the interpreter's end has begun."""
    sampled.over.set()
    sampled.ticker.stop()
    sampled.run.join()
    sampled.start(50_000_000)  # periods as long as those of services
    assert sampled.ticker.drain(10_000_000_000)
    sys.stdout = Sleepy()
    atexit.register(ctypes.PyDLL(None).usleep, 90_000)


class Lasting:
    """An object that computes when the ending interpreter drops it, for many times as long as a drain waits."""

    def __del__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        until_s = monotonic() + 0.3
        while monotonic() < until_s:
            pass


def long_finaliser(sampled: Sampled) -> None:
    """End while a thread that drains asks for the GIL, which it does not get any more."""
    sampled.over.set()
    sampled.ticker.stop()
    sampled.run.join()
    idle = make()
    threading.Thread(target=worker, args=(idle,), daemon=True).start()
    vars(gc)["lasting"] = Lasting()  # the names of this module are never dropped: a thread uses them


def another_interpreter(sampled: Sampled) -> None:
    module: Any = import_module("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters")
    other = module.create()
    for _ in range(40):
        assert sampled.ticker.drain(10_000_000_000)
    module.destroy(other)


WHILE_A_WORKER_DRAINS: dict[str, Callable[[], object]] = {
    "return": lambda: None,
    "sys.exit": lambda: sys.exit(0),
    "os._exit": lambda: os._exit(0),
}
ALONE: dict[str, Callable[[Sampled], None]] = {
    "unhandled": unhandled,
    "main thread first": main_thread_first,
    "stopped and dropped": stopped_and_dropped,
    "collected": collected,
    "after C code": after_c_code,
    "long finaliser": long_finaliser,
    "another interpreter": another_interpreter,
}


def main(how: str) -> None:
    sys.setswitchinterval(0.0005)  # each start and stop waits for the GIL
    sampled = Sampled()
    others = [threading.Thread(target=busy, args=(sampled.over,), daemon=how != "main thread first") for _ in range(3)]
    for thread in others:
        thread.start()
    while not sampled.ticker.drain(1_000_000_000):
        pass
    if how in WHILE_A_WORKER_DRAINS:
        threading.Thread(target=worker, args=(sampled.ticker,), daemon=True).start()
    print("ready", flush=True)
    if how in ALONE:
        ALONE[how](sampled)
    else:
        WHILE_A_WORKER_DRAINS[how]()


if __name__ == "__main__":
    main(sys.argv[1])
