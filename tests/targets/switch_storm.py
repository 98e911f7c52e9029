"""The hooks come and go in eight threads while others switch contexts in every way: ``switch_storm.py ROUNDS``.

Prints "ok" if every context held what it had to all the time, no call failed that should not, and the hooks work as on
the first day afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

from context_factory import attach, audit_passes, context_with_span, count_switches, current, hooks, install

from splunk_profiler import _context as native

TOGGLERS = 8
mine: ContextVar[int] = ContextVar("mine")
over = threading.Event()
failures: list[BaseException] = []
turns = count()


def nested(deep: int) -> int:
    """Contexts in contexts, each with a value of its own and a span."""
    mine.set(deep)
    token = native.attach(context_with_span())
    if deep:
        inner = copy_context()
        assert inner.run(nested, deep - 1) == deep - 1
        assert inner[mine] == deep - 1
        with contextlib.suppress(ZeroDivisionError):
            inner.run(lambda: 1 // 0)
        try:
            inner.run(lambda: inner.run(int))
        except RuntimeError:
            pass
        else:
            raise AssertionError("entered twice")
    native.detach(token)
    assert mine.get() == deep
    return deep


def runs_contexts() -> None:
    while not over.is_set():
        Context().run(nested, 10)
        next(turns)


def runs_a_loop(module: str) -> None:
    async def task(number: int) -> None:
        mine.set(number)
        token = native.attach(context_with_span())
        for _ in range(10):
            await asyncio.sleep(0)
            assert mine.get() == number
        native.detach(token)

    async def main() -> None:
        while not over.is_set():
            await asyncio.gather(*(task(number) for number in range(20)))
            next(turns)

    loop = import_module(module).new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def runs_greenlets() -> None:
    greenlet = import_module("greenlet").greenlet

    def body(number: int, parent: Any) -> None:
        mine.set(number)
        token = native.attach(context_with_span())
        for _ in range(10):
            parent.switch()
            assert mine.get() == number
        native.detach(token)

    while not over.is_set():
        here = import_module("greenlet").getcurrent()
        all_of_them = [(greenlet(body), number) for number in range(5)]
        for other, number in all_of_them:
            other.switch(number, here)
        for _ in range(10):
            for other, _number in all_of_them:
                other.switch()
        assert all(other.dead for other, _ in all_of_them)
        next(turns)


def toggles(rounds: int) -> None:
    for turn in range(rounds):
        assert install() == []
        Context().run(nested, 3)
        native.refresh()
        if turn % 16 == 0:
            gc.collect()
        native.uninstall()
        Context().run(nested, 3)


def guarded(body: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def main(rounds: int) -> None:
    with hooks():
        attach()
    bodies: list[Callable[[], None]] = [runs_contexts] * 4 + [lambda: runs_a_loop("asyncio")] * 2
    if find_spec("uvloop"):
        bodies.append(lambda: runs_a_loop("uvloop"))
    if find_spec("greenlet"):
        bodies += [runs_greenlets] * 2
    workers = [guarded(body) for body in bodies]
    print("ready", flush=True)
    for toggler in [guarded(lambda: toggles(rounds)) for _ in range(TOGGLERS)]:
        toggler.join()
    over.set()
    for worker in workers:
        worker.join()
    assert not failures
    with hooks():
        token = attach()
        assert copy_context().run(lambda: (attach(), audit_passes())[1])
        assert audit_passes()
        native.detach(token)
    before = count_switches()
    copy_context().run(lambda: current.set(context_with_span()))
    assert count_switches() == before
    print("turns", next(turns))
    print("ok", flush=True)


if __name__ == "__main__":
    sys.setswitchinterval(1e-5)
    main(int(sys.argv[1]))
