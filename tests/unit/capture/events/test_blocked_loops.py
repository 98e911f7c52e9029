"""Callbacks that hold an event loop: loops of this process, and a ticker that looks at them."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, NoReturn

import pytest

from splunk_profiler.capture.events.blocked_loops import (
    LOOP_BLOCKED,
    is_in_callback,
    make_blocked_loop_source,
)
from splunk_profiler.config import Config
from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import RawEvent

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
pytest.importorskip("_asyncio", reason="asyncio has no tasks of C here")
from loop_bench import LABELS, SECOND_NS, Bench, functions, new_event_loop, run

MAIN = ("__main__", "main")
RUNNER = ("asyncio.runners.Runner", "run")
STEP = ("asyncio.base_events.BaseEventLoop", "_run_once")
FOREVER = ("asyncio.base_events.BaseEventLoop", "run_forever")
HANDLE = ("asyncio.events.Handle", "_run")
NESTED_STEP = ("nest_asyncio._patch_loop.<locals>", "_run_once")  # the same loop, inside of a callback
SELECT = ("selectors.EpollSelector", "select")
ASYNCIO = [RUNNER, ("asyncio.base_events.BaseEventLoop", "run_until_complete"), FOREVER, STEP]
UVLOOP = [RUNNER]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.source.stop()
    made.ticker.stop()


def stack(*places: tuple[str, str]) -> Stack:
    """Make a stack of places, root first."""
    return Stack(tuple(Frame(*place, "app.py", 1) for place in reversed(places)), truncated=False)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([MAIN, *ASYNCIO, SELECT], False),
        ([MAIN, *ASYNCIO], False),
        ([MAIN, *ASYNCIO, HANDLE], True),
        ([MAIN, *ASYNCIO, HANDLE, ("app", "serve")], True),
        ([MAIN, *ASYNCIO, HANDLE, ("app", "serve"), NESTED_STEP, SELECT], False),
        ([MAIN, *ASYNCIO, HANDLE, ("app", "serve"), NESTED_STEP, HANDLE, ("app", "_run_once")], True),
        ([MAIN, *UVLOOP], False),
        ([MAIN, *UVLOOP, ("app", "serve")], True),
        ([("uvloop", "run"), *UVLOOP, ("uvloop.run.<locals>", "wrapper"), ("app", "serve")], True),
        ([("uvloop", "run"), *UVLOOP], False),
        ([("uvicorn.server.Server", "run"), ("uvicorn._compat", "asyncio_run"), *UVLOOP], False),
        ([MAIN, RUNNER, ("asyncio.runners.Runner", "_lazy_init"), ("app", "make_loop")], False),
        ([MAIN, RUNNER, ("qasync.QEventLoop", "run_until_complete"), ("qasync.QEventLoop", "run_forever")], False),
        ([MAIN, ("app", "serve")], False),
        ([], False),
    ],
)
def test_is_in_callback_knows_loops_and_waits(places: list[tuple[str, str]], expected: bool) -> None:
    assert is_in_callback(stack(*places)) is expected


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_callback_that_is_seen_twice_is_an_event_with_its_task(bench: Bench, library: str) -> None:
    def parse() -> None:
        bench.look(3)

    async def serve() -> None:
        parse()
        await asyncio.create_task(work(), name="nightly\n" + 200 * "x")

    async def work() -> None:
        parse()

    run(serve, new_event_loop(library))
    bench.look()
    events = bench.source.drain()
    own = "test_callback_that_is_seen_twice_is_an_event_with_its_task.<locals>.serve"
    assert [dict(event.labels)["task.name"] for event in events] == [own, "nightly\\n" + 120 * "x"]
    assert [functions(event)[:3] for event in events] == [["look", "parse", "serve"], ["look", "parse", "work"]]
    assert {event.event.kind for event in events} == {LOOP_BLOCKED}
    assert [event.event.count for event in events] == [1, 1]
    assert all(0 < event.event.amount < SECOND_NS for event in events)
    assert [event.thread.ident for event in events] == [threading.get_ident()] * 2


def test_loop_that_is_busy_with_short_callbacks_gives_no_event(bench: Bench) -> None:
    async def serve() -> None:
        for _ in range(5):
            bench.look()
            await asyncio.sleep(0)

    run(serve)
    bench.look()
    assert bench.found() == []


def test_loop_that_waits_for_work_gives_no_event(bench: Bench) -> None:
    loop, waits = asyncio.new_event_loop(), threading.Event()
    loop.call_soon(waits.set)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    waits.wait()
    bench.look(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    bench.look()
    assert bench.found() == []


def test_callback_shorter_than_the_threshold_gives_no_event() -> None:
    bench = Bench(3600 * SECOND_NS)

    async def serve() -> None:
        bench.look(3)

    run(serve)
    bench.look()
    assert bench.found() == []


def test_stack_is_of_what_the_callback_does_later_than_at_its_start() -> None:
    bench = Bench(SECOND_NS)

    def prepare() -> None:
        bench.look(3)

    def block() -> None:
        for _ in range(2):
            threading.Event().wait(0.55)
            bench.look()

    async def serve() -> None:
        prepare()
        block()

    run(serve)
    bench.look()
    (event,) = bench.source.drain()
    assert functions(event)[:3] == ["look", "block", "serve"]
    assert event.event.amount > SECOND_NS


def test_callback_of_seconds_is_reported_each_second_and_once(bench: Bench) -> None:
    events: list[RawEvent] = []

    def see_second() -> None:
        until_s = time.monotonic() + 1.05
        bench.look(2)
        threading.Event().wait(until_s - time.monotonic())
        bench.look(2)
        events.extend(bench.source.drain())

    async def serve() -> None:
        see_second()
        see_second()
        bench.look(2)

    run(serve)
    bench.look()
    events += bench.source.drain()
    assert [event.event.count for event in events] == [1, 0, 0]
    assert [event.event.amount > SECOND_NS for event in events] == [True, True, False]


def test_callbacks_of_two_loops_at_once_are_two_events(bench: Bench) -> None:
    both, seen = threading.Barrier(3), threading.Event()

    def first() -> None:
        both.wait()
        seen.wait()

    def second() -> None:
        both.wait()
        seen.wait()

    def serve(callback: Callable[[], None]) -> None:
        async def start() -> None:
            callback()

        run(start)

    threads = [threading.Thread(target=serve, args=[each]) for each in (first, second)]
    for thread in threads:
        thread.start()
    both.wait()
    bench.look(3)
    seen.set()
    for thread in threads:
        thread.join()
    bench.look()
    assert sorted(functions(event)[0] for event in bench.source.drain()) == ["first", "second"]


def test_callback_that_has_not_ended_when_the_ticker_stops_is_an_event(bench: Bench) -> None:
    found: list[tuple[str, str]] = []

    async def serve() -> None:
        bench.look(2)
        bench.source.stop()
        bench.ticker.stop()
        found.extend(bench.found())

    run(serve)
    assert [function for _, function in found] == ["look"]
    assert bench.found() == []


def test_callback_without_a_task_has_no_name(bench: Bench) -> None:
    loop = asyncio.new_event_loop()
    loop.call_soon(bench.look, 3)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    bench.look()
    assert bench.found() == [("", "look")]


class UnhashableLoop(asyncio.SelectorEventLoop):
    """A loop whose hash only asyncio may ask for."""

    is_asked = False

    def __hash__(self) -> int:
        UnhashableLoop.is_asked = True
        return super().__hash__()


class RenamedTask(asyncio.Task[Any]):
    """A task with methods of the application's, which may run any code."""

    def get_name(self) -> NoReturn:
        raise AssertionError

    get_coro = get_name


def test_running_task_is_named_without_code_of_the_application(bench: Bench) -> None:
    loop = UnhashableLoop()

    async def serve() -> None:
        UnhashableLoop.is_asked = False
        bench.look(3)
        assert not UnhashableLoop.is_asked

    async def start() -> None:
        await RenamedTask(serve(), loop=loop)

    run(start, loop)
    bench.look()
    assert [name.rpartition(".")[2] for name, _ in bench.found()] == ["serve"]


def test_running_task_of_another_awaitable_has_no_name(bench: Bench) -> None:
    class Other(Generator[Any, Any, None]):
        def send(self, _value: Any) -> Any:
            bench.look(3)
            raise StopIteration(None)

        def throw(self, *_error: Any) -> Any:
            raise AssertionError

    Coroutine.register(Other)

    async def start() -> None:
        await asyncio.Task(Other())

    run(start)
    bench.look()
    assert bench.found() == [("", "look")]


@pytest.mark.parametrize("drains", [True, False])
def test_what_a_blocked_loop_held_is_freed_with_its_event(drains: bool) -> None:
    class Label:
        pass

    benches, labels = [Bench()], [Label()]
    seen = weakref.ref(labels[0])

    async def serve() -> None:
        LABELS.set(labels.pop())
        benches[0].look(3)

    run(serve)
    benches[0].look()
    assert seen() is not None
    if drains:
        assert len(benches[0].found()) == 1
    else:
        benches.clear()
    assert seen() is None


def test_blocked_loops_that_nothing_drains_are_bounded(bench: Bench) -> None:
    async def serve() -> None:
        for _ in range(200):
            bench.look(2)
            await asyncio.sleep(0)

    run(serve)
    bench.look()
    assert len(bench.found()) == 128
    run(serve)
    bench.look()
    assert len(bench.found()) == 128


def test_arguments_of_another_type_are_refused(bench: Bench) -> None:
    with pytest.raises(TypeError):
        bench.ticker.watch_loops(1, None, "Task")


def test_blocked_loops_are_found_natively_and_where_they_are_wanted(bench: Bench) -> None:
    assert make_blocked_loop_source(Config(), bench.ticker, native=True) is not None
    assert make_blocked_loop_source(Config(), bench.ticker, native=False) is None
    assert make_blocked_loop_source(Config(loop_blocked_ms=0), bench.ticker, native=True) is None
