"""Threads that wait for locks, and what the walker finds of them. Needs the native walker."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Condition, Lock, RLock
from types import CodeType
from typing import Any

from walker_factory import blocked_thread

from splunk_profiler.capture.events.lock_holders import lock_kinds
from splunk_profiler.capture.lock_calls import lock_call

KINDS: Any = lock_kinds()


def entering(ticker: Any) -> list[tuple[CodeType, int]]:
    """Return where threads enter blocks now."""
    return [place for place in ticker.entered_places() if lock_call(*place) == "with"]


def holders(ticker: Any) -> list[tuple[Any, int]]:
    """Return the threads that hold locks, and the number of those that wait for each."""
    found: list[tuple[Any, int]] = ticker.capture_lock_holders(entering(ticker), KINDS)
    return found


def holding(ticker: Any, waiting: int) -> list[list[str]]:
    """Return the functions of the holders, once so many threads wait for them."""
    found: list[tuple[Any, int]] = []
    while sum(count for _, count in found) < waiting:
        found = holders(ticker)
    assert sum(count for _, count in found) == waiting
    return [functions_of(thread) for thread, _ in found]


def nobody_holds(ticker: Any) -> bool:
    """Return True if no holder is found, once a thread enters a block."""
    while not entering(ticker):
        pass
    return holders(ticker) == []


def functions_of(raw: Any) -> list[str]:
    return [frame.function for frame in raw.stack.frames]


def enter(lock: Any) -> None:
    with lock:
        pass


@contextmanager
def waiting(*locks: Any, inside: AbstractContextManager[object] | None = None) -> Iterator[None]:
    """Have a thread enter each lock; they end after the block, and after `inside` has."""
    threads = [threading.Thread(target=enter, args=(lock,)) for lock in locks]
    try:
        with inside or nullcontext():
            for thread in threads:
                thread.start()
            yield
    finally:
        for thread in threads:
            thread.join()


def contended(inside: Callable[[Callable[[], object]], object], *locks: Any) -> AbstractContextManager[None]:
    """Have a thread call `inside(wait)`, and others enter the locks meanwhile."""
    return waiting(*locks, inside=blocked_thread(inside))


def hold(lock: Any, wait: Callable[[], object]) -> None:
    with lock:
        wait()


class Storm:
    """Threads that enter, leave and raise out of nested blocks, in functions, generators and conditions."""

    def __init__(self) -> None:
        self.locks: list[Any] = [Lock(), RLock(), Condition(), Condition(Lock()), Lock()]
        self.are_over = threading.Event()

    def hold_some(self, number: int) -> None:
        if number >= len(self.locks):
            return
        with self.locks[number] as _:
            if number == 2:
                self.locks[2].notify_all()
                self.locks[2].wait(0.0001)
            for _ in self.yield_some(number + 1):
                gc.collect(0)

    def yield_some(self, number: int) -> Generator[None, None, None]:
        try:
            self.hold_some(number + number % 2)
            yield
            raise ValueError
        except ValueError:
            with self.locks[-1] if number < len(self.locks) - 1 else memoryview(b"x"):
                yield

    def run(self, number: int) -> None:
        while not self.are_over.is_set():
            self.hold_some(number % 2)
