"""The stacks that the native walker reads of waiting tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import walker_factory
from crowded_loop import Sampled, crowd, wait_in_task

from splunk_profiler.capture.walker import choose_walker, make_ticker

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
_asyncio = pytest.importorskip("_asyncio", reason="asyncio has no tasks of C here")

NUMBER: ContextVar[int] = ContextVar("NUMBER")
LABEL: ContextVar[str] = ContextVar("LABEL")
SECOND_NS = 1_000_000_000


@pytest.fixture
def ticker() -> Iterator[Any]:
    made = make_ticker(choose_walker("native"), NUMBER, lambda _: None, 20, labels_var=LABEL)
    yield made
    made.stop()


class Awaitable:
    """An awaitable of a class of the application, in Python."""

    def __await__(self) -> Generator[Any, None, None]:
        return wait_in_task().__await__()


async def yields() -> Any:
    await wait_in_task()
    yield 1


async def in_generator() -> None:
    async for _ in yields():
        pass


async def in_anext() -> None:
    await anext(yields(), None)


async def in_send() -> None:
    await yields().asend(None)


async def in_awaitable() -> None:
    await Awaitable()


class Items:
    """An asynchronous iterator of the application, without coroutines of its own."""

    def __anext__(self) -> Awaitable:
        return Awaitable()


async def with_itself_as_default() -> None:
    task = asyncio.current_task()
    assert task is not None
    await anext(Items(), task.get_coro())


async def in_recursion(depth: int = 30) -> None:
    await (in_recursion(depth - 1) if depth else wait_in_task())


class OtherTask(asyncio.Task[None]):
    """A task of a class of the application; nothing of it may be called."""

    context: ContextVar[int] = ContextVar("context")

    def get_name(self) -> str:
        raise AssertionError

    def get_coro(self) -> Any:
        raise AssertionError

    def __hash__(self) -> int:
        return id(self)


def captured(ticker: Any, *bodies: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    """Return the captures of tasks with these bodies, of which each has set its number and has begun to wait."""

    async def numbered(number: int, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        NUMBER.set(number)
        LABEL.set(f"label {number}")
        await body()

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(numbered(*pair)) for pair in enumerate(bodies)]
        for _ in range(3):
            await asyncio.sleep(0)
        found, waiting = ticker.capture_tasks(tasks, _asyncio.Task, 100)
        assert waiting == len(tasks) == len(found)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert ticker.capture_tasks(tasks, _asyncio.Task, 100) == ([], 0)
        return [raw for raw, _ in found]

    return asyncio.run(run())


def functions_of(raw: Any) -> list[str]:
    return [frame.function for frame in raw.stack.frames]


def test_tasks_have_their_own_stack_context_and_labels(ticker: Any) -> None:
    bodies = (wait_in_task, in_generator, in_anext, in_send, in_awaitable)
    found = captured(ticker, *bodies)
    ticker.capture()
    (snapshot,) = ticker.drain(0)
    own_keys = {raw.key for raw in snapshot.threads}
    chains: list[list[str]] = [
        [],
        ["yields", "in_generator"],
        ["yields", "in_anext"],
        ["yields", "in_send"],
        ["in_awaitable"],
    ]
    for number, (raw, chain) in enumerate(zip(found, chains, strict=True)):
        assert functions_of(raw) == ["wait", "wait_in_task", *chain, "numbered"]
        assert (raw.context, raw.labels, raw.state) == (number, f"label {number}", None)
        assert raw.key in own_keys
        assert not raw.stack.truncated


def test_a_coroutine_is_not_followed_to_what_it_does_not_await(ticker: Any) -> None:
    (raw,) = captured(ticker, with_itself_as_default)
    assert functions_of(raw) == ["with_itself_as_default", "numbered"]
    assert not raw.stack.truncated


def test_deep_tasks_lose_the_root_end(ticker: Any) -> None:
    (raw,) = captured(ticker, in_recursion)
    assert functions_of(raw) == ["wait", "wait_in_task", *["in_recursion"] * 18]
    assert raw.stack.truncated


def test_tasks_before_their_first_step_are_at_their_first_line(ticker: Any) -> None:
    async def run() -> None:
        task = asyncio.create_task(wait_in_task())
        (((raw, _),), _) = ticker.capture_tasks([task], _asyncio.Task, 1)
        assert [(frame.function, frame.line) for frame in raw.stack.frames] == [
            ("wait_in_task", wait_in_task.__code__.co_firstlineno)
        ]
        task.cancel()

    asyncio.run(run())


def test_running_tasks_and_other_objects_are_none(ticker: Any) -> None:
    async def run() -> None:
        objects: list[Any] = [asyncio.current_task(), 7, None, asyncio.Future(), wait_in_task]
        assert ticker.capture_tasks(objects, _asyncio.Task, 5) == ([], 0)
        assert ticker.capture_tasks(objects, object, 5) == ([], 0)

    asyncio.run(run())


def test_tasks_of_loops_that_do_not_run_are_none(ticker: Any) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(wait_in_task())
    assert ticker.running_loops() == []
    assert ticker.capture_tasks([task], _asyncio.Task, 1) == ([], 0)
    loop.call_soon(task.cancel)
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()


def test_tasks_of_other_classes_are_captured_and_not_called(ticker: Any) -> None:
    async def run() -> None:
        task = OtherTask(wait_in_task(), loop=asyncio.get_running_loop())
        await asyncio.sleep(0)
        events = Sampled(ticker, 5).after(SECOND_NS)
        assert [functions_of(event.thread) for event in events] == [["wait", "wait_in_task"]]
        task.cancel()

    asyncio.run(run())


@pytest.mark.skipif(sys.version_info < (3, 14), reason="tasks do not know who awaits them before CPython 3.14")
def test_awaited_tasks_stand_under_their_parents(ticker: Any) -> None:
    async def parent() -> None:
        await asyncio.gather(grandparent())

    async def grandparent() -> None:
        await asyncio.create_task(wait_in_task())

    async def run() -> list[Any]:
        task = asyncio.create_task(parent())
        for _ in range(4):
            await asyncio.sleep(0)
        others = list(asyncio.all_tasks() - {asyncio.current_task(), task})
        found, _ = ticker.capture_tasks(others, _asyncio.Task, 100)
        task.cancel()
        return [raw for raw, _ in found]

    stacks = sorted(functions_of(raw) for raw in asyncio.run(run()))
    assert stacks == [["grandparent", "parent"], ["wait", "wait_in_task", "grandparent", "parent"]]


def test_running_loops_come_with_the_keys_of_their_threads(ticker: Any) -> None:
    async def run() -> None:
        ticker.capture()
        ((snapshot,), ((loop, key),)) = ticker.drain(0), ticker.running_loops()
        assert loop is asyncio.get_running_loop()
        assert [thread.ident for thread in snapshot.threads if thread.key == key] == [threading.get_ident()]

    asyncio.run(run())


def test_of_many_running_loops_that_of_the_oldest_thread_is_listed(ticker: Any) -> None:
    marker = object()

    def run(wait: Callable[[], object]) -> None:
        _asyncio._set_running_loop(object())
        wait()

    _asyncio._set_running_loop(marker)
    try:
        with contextlib.ExitStack() as threads:
            for _ in range(70):
                threads.enter_context(walker_factory.blocked_thread(run))
            keys = [key for _, key in ticker.running_loops()]
            assert len(keys) == len({*keys}) == 64
            assert keys == sorted(keys, reverse=True)
            assert ticker.running_loops()[-1][0] is marker
    finally:
        _asyncio._set_running_loop(None)


def test_captures_leave_no_references(ticker: Any) -> None:
    async def run() -> None:
        name = "mine".ljust(10)
        task = asyncio.create_task(in_awaitable(), name=name)
        await asyncio.sleep(0)
        counts = []
        for _ in range(3):
            found = ticker.capture_tasks([task], _asyncio.Task, 1)
            loops = ticker.running_loops()
            code_count = sys.getrefcount(wait_in_task.__code__)
            del found
            gc.collect()
            counts.append((sys.getrefcount(task), sys.getrefcount(name), sys.getrefcount(loops[0][0]), code_count))
        assert counts[1] == counts[2]
        task.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("arguments", [(), ([], _asyncio.Task), ((), _asyncio.Task, 1), ([], 5, 1)])
def test_capture_tasks_refuses_other_arguments(ticker: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        ticker.capture_tasks(*arguments)


def test_layouts_that_do_not_agree_are_noticed(ticker: Any) -> None:
    generator: Any = (number for number in range(3))
    next(generator)
    code, offset = generator.gi_code, generator.gi_frame.f_lasti
    marker = object()
    _asyncio._set_running_loop(marker)
    try:
        assert ticker.reads_tasks(marker, generator, code, offset)
        assert not ticker.reads_tasks(object(), generator, code, offset)
        assert not ticker.reads_tasks(marker, generator, code, offset + 2)
        assert not ticker.reads_tasks(marker, generator, wait_in_task.__code__, offset)
        generator.close()
        assert not ticker.reads_tasks(marker, generator, code, offset)
    finally:
        _asyncio._set_running_loop(None)


def test_a_failing_constructor_fails_one_capture_of_tasks() -> None:
    failures = [ValueError("once")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return arguments

    ticker = walker_factory.make(make_stack=fail_once)

    async def run() -> None:
        tasks = await crowd(3)
        with pytest.raises(ValueError, match="once"):
            ticker.capture_tasks(tasks, _asyncio.Task, 3)
        captured, waiting = ticker.capture_tasks(tasks, _asyncio.Task, 3)
        assert (waiting, len(captured)) == (3, 3)

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the collector, if it runs meanwhile
def test_captures_without_memory_fail_cleanly_and_the_next_one_works(ticker: Any) -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")

    async def run() -> int:
        tasks, failed = await crowd(3), 0
        for nth in range(100):
            testing.set_nomemory(nth, nth + 1)  # only that allocation fails
            try:
                ticker.running_loops()
                ticker.capture_tasks(tasks, _asyncio.Task, 3)
            except (MemoryError, SystemError):  # 3.10's evaluation loop may lose the error
                failed += 1
            finally:
                testing.remove_mem_hooks()
            captured, waiting = ticker.capture_tasks(tasks, _asyncio.Task, 3)
            assert (waiting, len(captured)) == (3, 3)
        return failed

    assert 0 < asyncio.run(run()) < 100


async def in_context(depth: int) -> None:
    await (in_context(depth - 1) if depth else asyncio.sleep(0))


async def churn(are_over: threading.Event) -> None:
    """Run tasks whose depth follows from their number."""

    async def one(number: int) -> None:
        NUMBER.set(number)
        await in_context(number % 7)

    while not are_over.is_set():
        await asyncio.gather(*map(one, range(50)))
        gc.collect(0)


def test_stacks_fit_contexts_while_tasks_of_threads_come_and_go(ticker: Any) -> None:
    are_over = threading.Event()
    threads = [threading.Thread(target=lambda: asyncio.run(churn(are_over))) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen = 0
    try:
        while seen < 3000:
            for event in Sampled(ticker, 64).after(SECOND_NS):
                chain = functions_of(event.thread)
                if "sleep" in chain:
                    seen += 1
                    assert chain.count("in_context") == (event.thread.context or 0) % 7 + 1
    finally:
        are_over.set()
        for thread in threads:
            thread.join()
