"""All kinds of events at once, in threads, tasks and forks that come and go: ``event_storm.py SECONDS``.

The profiler of the environment's settings runs meanwhile, and is stopped and started anew now and then. Prints
``ok`` and the numbers of turns as JSON. ``make soak ARGS=event_storm`` runs the same for minutes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

_CHILD_TIMEOUT_S = 60.0
_TRACER = trace.get_tracer("storm")
turns: Counter[str] = Counter()
kept: list[object] = []
_LOCKS = (threading.Lock(), threading.RLock(), threading.Condition(threading.Lock()))


class _Finalised:
    """Garbage in a cycle, whose end allocates and raises."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        try:
            raise ValueError([bytes(2000)] * 3)
        except ValueError:
            turns["finalised"] += 1


def allocate(chance: random.Random) -> None:
    """Allocate, resize and free blocks of all sizes, some of them on another thread than they were made on."""
    mine: list[bytearray] = [bytearray(chance.randrange(1, 50_000)) for _ in range(20)]
    for block in mine:
        block.extend(bytes(chance.randrange(1, 20_000)))
    kept.append(mine)
    if len(kept) > 50:
        del kept[: chance.randrange(1, 40)]


def raise_errors(chance: random.Random, depth: int = 0) -> None:
    """Raise through a few frames, and out of C code."""
    try:
        if depth < chance.randrange(8):
            raise_errors(chance, depth + 1)
        int("no number" if chance.random() < 0.5 else {"neither": 1}["one"])
    except (ValueError, KeyError) as error:
        kept.append(error)  # its traceback holds frames


def collect(chance: random.Random) -> None:
    """Make garbage and collect it."""
    for _ in range(20):
        _Finalised()
    gc.collect(chance.randrange(3))


def contend(chance: random.Random) -> None:
    """Hold locks for which others wait, and raise out of their blocks."""
    with suppress(ValueError), _LOCKS[0]:
        for lock in chance.choices(_LOCKS[1:], k=chance.randrange(3)):
            with lock:
                time.sleep(chance.random() / 100)
        with _LOCKS[1], _LOCKS[2]:
            raise_errors(chance)
            raise ValueError


def run_threads(chance: random.Random) -> None:
    """Start threads that end in the middle of anything."""
    threads = [
        threading.Thread(
            target=chance.choice((allocate, raise_errors, collect)), args=(random.Random(chance.random()),)
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_tasks(chance: random.Random) -> None:
    """Run a loop of tasks that wait, work, fail and are cancelled."""

    async def work(depth: int) -> None:
        with _TRACER.start_as_current_span("task"):
            if depth:
                await asyncio.gather(work(depth - 1), work(depth - 1), return_exceptions=True)
            await asyncio.sleep(chance.random() / 100)
            if depth == 2:
                time.sleep(chance.random() / 10)  # keeps the loop waiting
            raise_errors(chance)
            await asyncio.to_thread(allocate, chance)

    async def main() -> None:
        lost = asyncio.create_task(asyncio.sleep(60), name="lost")
        await asyncio.gather(*(work(2) for _ in range(4)), return_exceptions=True)
        lost.cancel()

    asyncio.run(main())


def fork(chance: random.Random) -> None:
    """Fork a child that does a little of everything, and ends without or with all that ends do."""
    child = os.fork()
    if child == 0:
        try:
            for work in (allocate, raise_errors, collect):
                work(chance)
            if chance.random() < 0.3:
                splunk_profiler.stop(0.1)
        except BaseException:  # the parent's code must not run here
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a child ended with {status}")


def restart(_chance: random.Random) -> None:
    """Stop the profiler and start it anew."""
    splunk_profiler.stop(0.2)
    splunk_profiler.start()


def repeat(work: Callable[[random.Random], None], until_s: float, seed: int) -> None:
    """Take turns until the time is over."""
    chance = random.Random(seed)
    while time.monotonic() < until_s and not failures:
        with _TRACER.start_as_current_span(work.__name__):
            work(chance)
        turns[work.__name__] += 1
        time.sleep(chance.random() / (2 if work is restart else 50))


failures: list[object] = []
WORKS = (allocate, raise_errors, collect, contend, contend, contend, run_threads, run_tasks, fork, restart)


def main(seconds: float) -> None:
    """Run everything side by side."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
    trace.set_tracer_provider(TracerProvider())
    threading.excepthook = lambda args: failures.append(args.exc_value)
    assert splunk_profiler.start()
    until_s = time.monotonic() + seconds
    threads = [threading.Thread(target=repeat, args=(work, until_s, seed)) for seed, work in enumerate(WORKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + _CHILD_TIMEOUT_S)
        if thread.is_alive():
            failures.append(f"{thread.name} has not ended")
    splunk_profiler.stop(5)
    assert not failures, failures
    print("ok", json.dumps(turns), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
