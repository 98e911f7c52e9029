"""The choice of the waiting tasks that are sampled."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest
from crowded_loop import Sampled, crowd

from splunk_profiler.capture.events.waiting_tasks import TASK_KIND, make_task_source
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.config import Config

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
pytest.importorskip("_asyncio", reason="asyncio has no tasks of C here")
import walker_factory

NUMBER: ContextVar[int] = ContextVar("NUMBER")
SECOND_NS = 1_000_000_000


@pytest.fixture
def ticker() -> Iterator[Any]:
    made = make_ticker(choose_walker("native"), NUMBER, lambda _: None, 20)
    yield made
    made.stop()


def test_source_samples_at_most_so_many_that_stand_for_all(ticker: Any) -> None:
    async def run() -> None:
        tasks = await crowd(100)
        sampled = Sampled(ticker, 16)
        events = sampled.after(2 * SECOND_NS)
        assert len(events) == 16
        assert sum(event.event.count for event in events) == 100  # the running one does not wait
        assert {event.event.count for event in events} == {6, 7}
        assert all(event.event.amount == 2 * SECOND_NS * event.event.count for event in events)
        assert {event.event.kind for event in events} == {TASK_KIND}
        assert all(event.labels == () for event in events)
        del tasks

    asyncio.run(run())


@pytest.mark.parametrize(("used", "next_s"), [({"wall_ns": 25_000_000}, 1), ({"cpu_ns": 25_000_000}, 5)])
def test_next_sample_waits_for_what_one_has_computed_not_for_what_kept_it(
    ticker: Any, used: dict[str, int], next_s: int
) -> None:
    async def run() -> None:
        tasks = await crowd(10)
        sampled = Sampled(ticker, 4, **used)
        assert sampled.after(2 * SECOND_NS)
        assert not sampled.after(next_s * SECOND_NS - 200_000_000)
        assert sampled.after(400_000_000)
        del tasks

    asyncio.run(run())


def test_source_samples_all_of_few_tasks_and_names_those_with_names(ticker: Any) -> None:
    async def run() -> None:
        tasks = [*await crowd(2), *await crowd(2, name="mine\n" + 200 * "x")]
        events = Sampled(ticker, 16).after(SECOND_NS)
        assert [event.event.count for event in events] == [1] * 4
        named = (("task.name", "mine\\n" + 123 * "x"),)
        assert sorted(event.labels for event in events) == [(), (), named, named]
        del tasks

    asyncio.run(run())


def test_source_waits_for_its_period_and_for_a_running_loop(ticker: Any) -> None:
    sampled = Sampled(ticker, 16, 3 * SECOND_NS)
    assert sampled.after(2 * SECOND_NS) == ()
    assert sampled.after(SECOND_NS) == []

    async def run() -> None:
        tasks = await crowd(1)
        assert sampled.after(SECOND_NS) == ()
        (event,) = sampled.after(4 * SECOND_NS)
        assert event.event.amount == 5 * SECOND_NS
        sampled.source.stop()
        assert sampled.after(4 * SECOND_NS) == ()
        del tasks

    asyncio.run(run())


def test_source_is_on_only_with_a_limit_and_the_native_walker(ticker: Any) -> None:
    assert make_task_source(Config(max_tasks=0), ticker, native=True) is None
    assert make_task_source(Config(), ticker, native=False) is None
    assert make_task_source(Config(), ticker, native=True) is not None


def test_source_probes_some_of_thousands_and_counts_all(ticker: Any) -> None:
    async def run() -> None:
        tasks = await crowd(5000)
        events = Sampled(ticker, 16).after(SECOND_NS)
        assert len(events) == 16
        # The running task may be one of the probes, each of which stands for five.
        assert sum(event.event.count for event in events) == pytest.approx(5000, abs=6)
        del tasks

    gc.collect()  # ended tasks that wait for the collector are probed as well
    asyncio.run(run())


class NumberedTask(asyncio.Task[None]):
    """A task that has its place among others, where asyncio lists them, by a number."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, None]) -> None:
        self.number = number
        super().__init__(coroutine)

    def __hash__(self) -> int:
        return self.number


@pytest.mark.parametrize(("number", "most"), [(64, 50), (1024, 1_300)])  # five deviations
def test_tasks_of_kinds_that_take_turns_are_sampled_alike(ticker: Any, number: int, most: int) -> None:
    async def read(until: asyncio.Future[None]) -> None:
        await until

    async def write(until: asyncio.Future[None]) -> None:
        await until

    async def beat(until: asyncio.Future[None]) -> None:
        await until

    async def run() -> None:
        until = asyncio.get_running_loop().create_future()
        kinds = number * [read, write, beat]
        tasks = [NumberedTask(place, kind(until)) for place, kind in enumerate(kinds)]
        await asyncio.sleep(0)
        counts: Counter[str] = Counter()
        for event in Sampled(ticker, 64).after(SECOND_NS):
            counts[event.thread.stack.frames[0].function] += event.event.count
        del counts["run"]
        assert counts.keys() == {"read", "write", "beat"}
        assert [*counts.values()] == pytest.approx(3 * [number], abs=most)
        until.set_result(None)
        await asyncio.gather(*tasks)

    gc.collect()
    asyncio.run(run())


@pytest.mark.parametrize("during", ["name", "name_labels"])  # of a place in code, and of the task
def test_task_that_ends_during_its_capture_is_freed_on_its_own_thread(during: str) -> None:
    gc.collect()  # of many ended tasks that wait for the collector only some are probed
    loop, fails, waits, is_over = asyncio.new_event_loop(), asyncio.Event(), threading.Event(), threading.Event()
    reporters: list[int] = []

    async def fail() -> None:
        waits.set()
        await fails.wait()
        raise ValueError

    def report(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
        reporters.append(threading.get_ident())  # its exception was never retrieved

    def end_task(frame: FrameType, event: str, _: object) -> None:
        if (event, frame.f_code.co_name) == ("call", during):
            loop.call_soon_threadsafe(fails.set)
            loop.call_soon_threadsafe(loop.call_soon, loop.call_soon, is_over.set)  # two turns of the loop later
            is_over.wait(60)

    def begin() -> None:
        loop.create_task(fail(), name="mine")

    loop.set_exception_handler(report)
    loop.call_soon(begin)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    waits.wait(60)
    made = walker_factory.make(context_var=NUMBER)
    sys.setprofile(end_task)
    events = Sampled(made, 16).after(SECOND_NS)
    sys.setprofile(None)
    made.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert is_over.is_set()
    assert reporters == [thread.ident]
    assert [event.labels for event in events] == [(("task.name", "mine"),)]
