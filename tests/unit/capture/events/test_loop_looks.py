"""Looks at event loops between captures, by a ticker that runs."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
pytest.importorskip("_asyncio", reason="asyncio has no tasks of C here")
from loop_bench import SECOND_NS, Bench, functions, new_event_loop, run


@contextmanager
def looking_by_itself(threshold_ns: int, ratio: float = 1.0) -> Iterator[Bench]:
    """A bench whose ticker runs: it captures once in ten seconds, and looks in between."""
    bench = Bench(threshold_ns, ratio)
    thread = threading.Thread(target=bench.ticker.run, args=(10 * SECOND_NS,))
    thread.start()
    yield bench
    bench.ticker.stop()
    thread.join()


def spin(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def keep_gil(seconds: float) -> None:
    """Stay in C code that keeps the GIL: nothing can look meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def test_each_callback_is_blamed_for_its_own_time_between_captures() -> None:
    took_s: dict[str, float] = {}

    async def block(how: Callable[[float], None]) -> None:
        await asyncio.sleep(0.05)
        began_s = time.monotonic()
        how(0.6)
        took_s[how.__name__] = time.monotonic() - began_s

    async def serve() -> None:
        for how in (spin, keep_gil, rest):
            await asyncio.create_task(block(how), name=how.__name__)
        await asyncio.sleep(0.05)

    with looking_by_itself(100_000_000) as bench:
        run(serve)
    events = bench.source.drain()
    expected = ["spin", "keep_gil", "rest"]
    if sys.version_info < (3, 12):  # no pending call waits for the end of C code: then it is found by chance
        expected.remove("keep_gil")
        events = [event for event in events if dict(event.labels).get("task.name") != "keep_gil"]
    assert [functions(event)[0] for event in events] == expected
    assert [dict(event.labels).get("task.name") for event in events] == expected
    for event in events:
        name = dict(event.labels)["task.name"]
        assert 100_000_000 <= event.event.amount <= (took_s[name] + 0.4) * 1e9
    counters = bench.ticker.counters()
    assert (counters.due, counters.missed) == (0, 0), "looks are no captures"
    assert counters.look_ns_sum > 0


def test_block_after_many_short_callbacks_counts_from_its_own_beginning() -> None:
    took_s = []

    async def serve() -> None:
        for _ in range(3):
            until_s = time.monotonic() + 0.3
            while time.monotonic() < until_s:
                await asyncio.sleep(0)
            began_s = time.monotonic()
            spin(0.6)
            took_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0)

    with looking_by_itself(100_000_000) as bench:
        run(serve)
    events = bench.source.drain()
    assert [functions(event)[0] for event in events] == ["spin"] * 3
    for event, least_s in zip(events, took_s, strict=True):
        assert 100_000_000 <= event.event.amount <= least_s * 1e9


def test_loops_of_one_request_each_are_looked_at() -> None:
    async def block() -> None:
        rest(0.5)

    with looking_by_itself(100_000_000) as bench:
        for _ in range(3):
            run(block)
            rest(0.06)
    assert [functions(event)[0] for event in bench.source.drain()] == ["rest"] * 3


def test_blocks_of_new_loops_beside_a_busy_one_are_all_found() -> None:
    over = threading.Event()

    async def work() -> None:
        while not over.is_set():
            await asyncio.sleep(0.002)

    async def block() -> None:
        rest(0.4)

    with looking_by_itself(100_000_000) as bench:
        busy = threading.Thread(target=run, args=(work,))
        busy.start()
        for _ in range(8):
            other = threading.Thread(target=run, args=(block,))
            other.start()
            other.join()
        over.set()
        busy.join()
    assert [functions(event)[0] for event in bench.source.drain()] == ["rest"] * 8


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_callbacks_of_twice_the_threshold_are_all_found(library: str) -> None:
    async def serve() -> None:
        for _ in range(2):
            rest(0.84)
            await asyncio.sleep(0.013)

    with looking_by_itself(400_000_000) as bench:
        run(serve, new_event_loop(library))
    assert [functions(event)[0] for event in bench.source.drain()] == ["rest"] * 2


def test_looks_are_as_rare_as_the_limit_wants_them() -> None:
    async def block() -> None:
        rest(0.5)

    with looking_by_itself(100_000_000, ratio=500.0) as bench:
        run(block)
        for ratio in (1e9, 200.0):
            bench.source.slow_down(ratio)
            run(block)
    assert bench.source.drain() == []
    with pytest.raises(TypeError):
        bench.ticker.slow_down_looks("2")
