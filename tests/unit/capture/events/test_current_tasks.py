"""The names of the asyncio tasks that run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

import pytest

from splunk_profiler.capture.events.current_tasks import CurrentTaskSource, make_current_task_source
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.config import Config

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
pytest.importorskip("_asyncio", reason="asyncio has no tasks of C here")


class Report:
    async def make(self, source: CurrentTaskSource) -> list[str]:
        return names(source)


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


def names(source: CurrentTaskSource) -> list[str]:
    """Return the names that the source gives, without those of other threads."""
    return [task.name for task in source.drain()]


def new_event_loop(library: str) -> asyncio.AbstractEventLoop:
    module = pytest.importorskip(library, reason=f"{library} is not installed for this interpreter")
    loop: asyncio.AbstractEventLoop = module.new_event_loop()
    return loop


def run(make: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> Any:
    try:
        return loop.run_until_complete(make())
    finally:
        loop.close()


@pytest.fixture
def source() -> Iterator[CurrentTaskSource]:
    ticker = make_ticker(choose_walker("native"), ContextVar("unused"), lambda _: None, 20)
    made = make_current_task_source(Config(), ticker, native=True)
    assert made is not None
    made.start()
    yield made
    made.stop()
    ticker.stop()


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_running_task_has_its_name_or_that_of_its_coroutine(source: CurrentTaskSource, library: str) -> None:
    async def serve() -> list[list[str]]:
        named = asyncio.create_task(Report().make(source), name="nightly\n" + 200 * "x")
        return [names(source), await asyncio.create_task(Report().make(source)), await named]

    own = "test_running_task_has_its_name_or_that_of_its_coroutine.<locals>.serve"
    assert run(serve, new_event_loop(library)) == [[own], ["Report.make"], ["nightly\\n" + 120 * "x"]]


def test_callback_without_a_task_and_loop_that_has_ended_have_no_name(source: CurrentTaskSource) -> None:
    loop, found = asyncio.new_event_loop(), [["no callback"]]
    loop.call_soon(lambda: found.append(names(source)))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert found[1:] == [[]]
    assert names(source) == []


def test_running_task_is_named_without_code_of_the_application(source: CurrentTaskSource) -> None:
    loop = UnhashableLoop()

    async def serve() -> list[str]:
        UnhashableLoop.is_asked = False
        found = names(source)
        assert not UnhashableLoop.is_asked
        return found

    async def start() -> list[str]:
        found: list[str] = await RenamedTask(serve(), loop=loop)
        return found

    assert [name.rpartition(".")[2] for name in run(start, loop)] == ["serve"]


def test_running_task_in_python_or_of_another_awaitable_has_no_name(source: CurrentTaskSource) -> None:
    class Other(Generator[Any, Any, list[str]]):
        def send(self, _value: Any) -> Any:
            raise StopIteration(names(source))

        def throw(self, *_error: Any) -> Any:
            raise AssertionError

    Coroutine.register(Other)

    async def start() -> list[str]:
        found: list[str] = await asyncio.Task(Other())
        return found

    assert run(start, asyncio.new_event_loop()) == []


def test_running_tasks_are_read_natively_where_blocks_are_reported(source: CurrentTaskSource) -> None:
    ticker: Any = None
    assert make_current_task_source(Config(), ticker, native=False) is None
    assert make_current_task_source(Config(loop_blocked_ms=0), ticker, native=True) is None
    source.stop()

    async def serve() -> list[str]:
        return names(source)

    assert run(serve, asyncio.new_event_loop()) == []
