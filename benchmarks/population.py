"""Threads with deep stacks to profile: blocked, stepping and busy ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

THREADS = 33  # with the main thread
FRAMES = 43
APPLICATION_PREFIX = "application-"  # of the names of these threads


def descend(frames: int, leaf: Callable[[], None]) -> None:
    """Call `leaf` below `frames` frames of this function."""
    if frames > 1:
        descend(frames - 1, leaf)
    else:
        leaf()


def _thread(body: Callable[..., None], number: int, *arguments: Any) -> threading.Thread:
    return threading.Thread(target=body, args=arguments, name=f"{APPLICATION_PREFIX}{number}", daemon=True)


class BlockedThreads:
    """Threads that wait, each with a stack of the same depth."""

    def __init__(self, threads: int, frames: int) -> None:
        self._stop = threading.Event()
        self._ready = threading.Barrier(threads + 1)
        self._threads = [_thread(self._body, number, frames) for number in range(threads)]

    def _body(self, frames: int) -> None:
        # threading's bootstrap (2), run, this one, the leaf and the wait inside it (2) are frames as well
        descend(frames - 7, self._leaf)

    def _leaf(self) -> None:
        self._ready.wait()
        self._stop.wait()

    def __enter__(self) -> BlockedThreads:
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class SteppingThreads:
    """Threads that block until `step`, which moves each of them to another line."""

    def __init__(self, threads: int, frames: int) -> None:
        self._gates = [threading.Semaphore(0) for _ in range(threads)]
        self._arrived = threading.Barrier(threads + 1)
        self._threads = [threading.Thread(target=self._body, args=(gate, frames), daemon=True) for gate in self._gates]

    def _body(self, gate: threading.Semaphore, frames: int) -> None:
        descend(frames - 7, lambda: self._leaf(gate))

    def _leaf(self, gate: threading.Semaphore) -> None:
        with suppress(threading.BrokenBarrierError):  # the end
            while True:
                self._arrived.wait()
                gate.acquire()
                self._arrived.wait()
                gate.acquire()  # a different line, so the stack differs

    def step(self) -> None:
        """Move every thread to its next line, and wait until all are there."""
        for gate in self._gates:
            gate.release()
        self._arrived.wait()

    def __enter__(self) -> SteppingThreads:
        for thread in self._threads:
            thread.start()
        self._arrived.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._arrived.abort()
        for gate in self._gates:
            gate.release()
        for thread in self._threads:
            thread.join()


@contextmanager
def run_busy_threads(threads: int, work: Callable[[int, Callable[[], bool]], None]) -> Iterator[None]:
    """Run ``work(number, is_over)`` on so many threads until the block ends."""
    stop_event = threading.Event()
    running = [_thread(work, number, number, stop_event.is_set) for number in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop_event.set()
        for thread in running:
            thread.join()
