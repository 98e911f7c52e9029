"""Deadlines at which no thread has run are counted, and no others."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import pytest

pytest.importorskip("splunk_profiler._walker")

from walker_factory import make

from splunk_profiler.capture.sampler import Sampler
from splunk_profiler.raw import Periods, RawSnapshot
from splunk_profiler.system.threads import active_threads

KNOWS_ALL_THREADS = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="before CPython 3.11 threads have native ids in `threading` only"
)  # and the workers of pytest have threads that it does not know
PERIOD_NS = 2_000_000
DEADLINE_S = 60


class Observer:
    """The snapshots of a sampler. A thread that waits for some does not run meanwhile."""

    def __init__(self, *, skips_quiet: bool = True) -> None:
        self.ticker = make(ring_size=256, threads=active_threads(), skips_quiet=skips_quiet)
        self.snapshots: list[RawSnapshot] = []
        self._sampler = Sampler(cast("Any", self.ticker), Periods(PERIOD_NS, 0), self._take)
        self._left = 0  # of what is waited for
        self._counts_captures = False
        self._is_found = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> Observer:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._sampler.stop(DEADLINE_S)

    def _take(self, snapshot: RawSnapshot) -> None:
        with self._lock:
            self.snapshots.append(snapshot)
            self._left -= snapshot.quiet_count or self._counts_captures
            if self._left <= 0:
                self._is_found.set()

    def wait(self, count: int, *, counts_captures: bool = False) -> list[RawSnapshot]:
        """Wait for so many quiet deadlines, or for captures too; return all snapshots of that time."""
        with self._lock:
            before = len(self.snapshots)
            self._is_found.clear()
            self._counts_captures, self._left = counts_captures, count
        assert self._is_found.wait(DEADLINE_S), "too few"
        return self.snapshots[before:]


class Mover:
    """A thread that waits at a place until it is told to go to the next one."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.first()
        self.second()

    def first(self) -> None:
        os.read(self._read_fd, 1)

    def second(self) -> None:
        os.read(self._read_fd, 1)

    def move(self) -> None:
        os.write(self._write_fd, b".")

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _turn in range(2):
            self.move()
        self._thread.join()
        os.close(self._read_fd)
        os.close(self._write_fd)

    def seen(self, snapshot: RawSnapshot) -> tuple[str, int | None]:
        """Return where it is, and its state."""
        ((place, state),) = (
            (thread.stack[0][0], thread.state) for thread in snapshot.threads if thread.ident == self._thread.ident
        )
        return place, state


@KNOWS_ALL_THREADS
def test_deadlines_are_counted_while_no_thread_runs_and_none_is_lost() -> None:
    with Observer() as observer:
        observer.wait(100)
    found, counters = observer.snapshots, observer.ticker.counters()
    quiet = [snapshot for snapshot in found if snapshot.quiet_count]
    assert {len(snapshot.threads) for snapshot in quiet} == {0}
    assert {snapshot.period_ns for snapshot in quiet} == {PERIOD_NS}
    assert sorted(found, key=lambda snapshot: snapshot.instant_ns - snapshot.latency_ns) == found
    assert sorted(found, key=lambda snapshot: snapshot.process_cpu_ns) == found
    assert counters.captured == len(found) - len(quiet)
    assert counters.captured + sum(snapshot.quiet_count for snapshot in quiet) == counters.due - counters.missed


def test_every_deadline_has_a_capture_unless_it_is_asked_for() -> None:
    with Observer(skips_quiet=False) as observer:
        found = observer.wait(100, counts_captures=True)
    assert not any(snapshot.quiet_count for snapshot in found)


@KNOWS_ALL_THREADS
def test_a_thread_that_has_moved_is_captured_at_rest_where_it_is() -> None:
    with Mover() as mover, Observer() as observer:
        observer.wait(20)
        mover.move()
        observer.wait(200)  # those before the move may be among them
        found = observer.snapshots
    quiet_before_move = []
    for before, quiet in pairwise(found):
        if quiet.quiet_count and before.threads:
            place, state = mover.seen(before)
            assert state == 0
            quiet_before_move.append(place == "first")
    assert quiet_before_move == sorted(quiet_before_move, reverse=True)
    assert set(quiet_before_move) == {True, False}


@contextmanager
def hashing() -> Iterator[int]:
    """Run a thread that uses a processor without the GIL; yield its ident."""
    is_over, has_begun, data = threading.Event(), threading.Event(), bytes(1 << 24)

    def run() -> None:
        while not is_over.is_set():
            has_begun.set()
            hashlib.sha256(data)

    thread = threading.Thread(target=run)
    thread.start()
    has_begun.wait()
    try:
        assert thread.ident is not None
        yield thread.ident
    finally:
        is_over.set()
        thread.join()


def test_a_thread_without_the_gil_has_not_run_at_quiet_deadlines() -> None:
    with hashing() as ident, Observer() as observer:
        found = observer.wait(100, counts_captures=True)
    used_ns, quiet = 0, None
    for snapshot in found:
        if snapshot.quiet_count:
            quiet = snapshot
            continue
        (now_ns,) = (thread.cpu_ns for thread in snapshot.threads if thread.ident == ident)
        if quiet is not None and used_ns:  # it had no processor for a while
            assert now_ns - used_ns <= snapshot.instant_ns - quiet.instant_ns
        quiet, used_ns = None, now_ns
