"""Tests of each way to change a thread's context: it is noticed at once, and works as without hooks."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from context_factory import Span, attach, audit_passes, context_with_span, count_switches, current, hooks, install
from unseen_changes import reset_unseen, set_unseen

from splunk_profiler import _context as native

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def published() -> Iterator[None]:
    """Install the hooks and attach a span."""
    with hooks() as problems:
        assert problems == []
        token = attach()
        yield
        native.detach(token)


@pytest.mark.usefixtures("published")
def test_the_audit_finds_changes_that_the_hooks_missed() -> None:
    known = Span()
    native.detach(attach(known))
    token = set_unseen(current, context_with_span(known))
    assert not audit_passes()
    assert audit_passes()
    reset_unseen(current, token)
    assert not audit_passes()


def test_a_context_that_is_set_past_attach_is_published_at_once() -> None:
    early, other = (current.set, current.reset), contextvars.ContextVar[int]("other")
    with hooks():
        for set_current, reset_current in (early, (current.set, current.reset)):
            token = set_current(context_with_span())
            assert audit_passes()
            reset_current(token)
            assert audit_passes()
        assert noticed_in(lambda: other.reset(other.set(1))) == 0


@pytest.mark.usefixtures("published")
def test_attach_and_detach_publish_what_they_set() -> None:
    outer, context = current.get(), context_with_span()
    token = native.attach(context)
    assert (token.var, token.old_value, current.get()) == (current, outer, context)
    assert audit_passes()
    native.detach(token)
    assert current.get() is outer
    assert audit_passes()


@pytest.mark.usefixtures("published")
def test_attach_and_detach_take_keywords_as_the_runtime_context_does() -> None:
    before, context = current.get(), context_with_span()
    token = native.attach(context=context)
    assert current.get() is context
    native.detach(token=token)
    assert current.get() is before
    for wrong in (dict[str, Any](), {"other": context}, {"context": context, "token": token}):
        with pytest.raises(TypeError, match="exactly one argument"):
            native.attach(**wrong)
        with pytest.raises(TypeError, match="exactly one argument"):
            native.detach(**wrong)


def noticed_in(body: Callable[[], object]) -> int:
    """Return the number of switches noticed while it ran."""
    before = count_switches()
    body()
    return count_switches() - before


def _used() -> contextvars.Token[Any]:
    token = current.set(context_with_span())
    current.reset(token)
    return token


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: None,
        lambda: 7,
        lambda: contextvars.ContextVar[int]("other").set(1),
        _used,
        lambda: copy_context().run(current.set, context_with_span()),
    ],
    ids=["None", "no token", "of another variable", "used", "of another context"],
)
def test_detach_refuses_what_reset_refuses_and_in_its_words(wrong: Callable[[], Any]) -> None:
    errors = []
    for reset in (current.reset, native.detach):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
            reset(wrong())
        errors.append((raised.type, str(raised.value).partition(" at 0x")[0]))
    assert errors[0] == errors[1]
    assert audit_passes()


@pytest.mark.usefixtures("published")
def test_context_run_publishes_the_entered_and_the_restored_context() -> None:
    inside = Context()

    def body() -> None:
        assert audit_passes()
        attach()
        assert audit_passes()
        copy_context().run(lambda: audit_passes() or pytest.fail("nested"))
        assert audit_passes()

    for run in (inside.run, partial(Context.run, inside), partial(getattr(inside, "run"))):  # noqa: B009
        assert noticed_in(lambda run=run: run(body)) >= 3  # type: ignore[misc]
        assert audit_passes()


@pytest.mark.usefixtures("published")
def test_run_hands_over_arguments_results_and_exceptions() -> None:
    def body(*args: int, **kwargs: int) -> tuple[tuple[int, ...], dict[str, int]]:
        attach()
        return args, kwargs

    assert copy_context().run(body) == ((), {})
    assert copy_context().run(body, 1, 2, three=3) == ((1, 2), {"three": 3})

    def fails() -> None:
        attach()
        raise LookupError("on purpose")

    with pytest.raises(LookupError) as raised:
        copy_context().run(fails)
    assert [frame.name for frame in traceback.extract_tb(raised.tb)][1:] == ["fails"]
    assert audit_passes()


def errors_of_run() -> list[tuple[type[Exception], str]]:
    inside = Context()
    found: list[tuple[type[Exception], str]] = []
    wrong: list[Callable[[], object]] = [
        inside.run,  # type: ignore[list-item]
        Context.run,  # type: ignore[list-item]
        lambda: Context.run(3, print),  # type: ignore[arg-type]
        lambda: inside.run(None),  # type: ignore[arg-type]
        lambda: inside.run(callable=print),
        lambda: inside.run(len, 1, 2),  # type: ignore[arg-type, call-arg]
        lambda: inside.run(inside.run, print),
    ]
    for call in wrong:
        with pytest.raises((TypeError, RuntimeError)) as raised:
            call()
        found.append((raised.type, str(raised.value).replace(hex(id(inside)), "it")))
    return found


def test_run_raises_the_same_errors_with_and_without_hooks() -> None:
    without = errors_of_run()
    with hooks():
        attach()
        assert errors_of_run() == without
        assert audit_passes()
    assert errors_of_run() == without


@pytest.mark.usefixtures("published")
def test_recursion_limit_is_unchanged_by_hooks_and_leaves_the_right_span() -> None:
    deepest = 0

    def deeper(depth: int) -> None:
        nonlocal deepest
        deepest = depth
        attach()
        copy_context().run(deeper, depth + 1)

    with pytest.raises(RecursionError):
        deeper(0)
    assert deepest > 50
    assert audit_passes()


def test_run_begun_before_install_or_ended_after_uninstall_is_left_alone() -> None:
    run = Context().run

    def comes() -> None:
        install()
        attach()
        assert audit_passes()

    run(comes)
    assert sys.version_info < (3, 14) or audit_passes()

    def goes() -> str:
        attach()
        assert audit_passes()
        native.uninstall()
        return "result"

    assert Context().run(goes) == "result"
    assert noticed_in(lambda: run(attach)) == 0


def test_without_the_hooks_nothing_is_noticed() -> None:
    with hooks():
        native.detach(attach())
    with ThreadPoolExecutor(1) as pool:
        for submit in (lambda: pool.submit(attach).result(), lambda: copy_context().run(attach)):
            assert noticed_in(submit) == 0
    assert noticed_in(lambda: native.detach(attach())) == 0


@pytest.mark.usefixtures("published")
def test_work_in_other_threads_is_published_with_its_own_span() -> None:
    def body() -> bool:
        attach()
        return audit_passes() and copy_context().run(audit_passes)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda _: copy_context().run(body), range(50)))
        assert all(pool.map(lambda _: body(), range(50)))
    assert audit_passes()


def loops() -> list[Any]:
    uvloop = pytest.param("uvloop", marks=pytest.mark.skipif(not find_spec("uvloop"), reason="uvloop is not installed"))
    return ["asyncio", uvloop]


@pytest.fixture(params=loops())
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """Import the loop's module before the hooks search the loaded modules, and yield a loop."""
    made: asyncio.AbstractEventLoop = import_module(request.param).new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


async def _holds_a_span(turns: int) -> int:
    wrong = int(not audit_passes())
    attach()
    for _ in range(turns):
        await asyncio.sleep(0)
        wrong += not audit_passes()
    return wrong


async def _has_none(turns: int) -> int:
    wrong = 0
    for _ in range(turns):
        await asyncio.sleep(0)
        wrong += not audit_passes()
    return wrong


@pytest.mark.usefixtures("published")
def test_every_task_is_published_with_its_own_span(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*(task(20) for task in (_holds_a_span, _has_none) for _ in range(10)))

    before = native.counters()["published"]
    assert sum(loop.run_until_complete(main())) == 0
    assert native.counters()["published"] - before >= 20 * 10
    assert audit_passes()


@pytest.mark.usefixtures("published")
def test_loop_callbacks_timers_and_threads_keep_their_given_context(
    loop: asyncio.AbstractEventLoop,
) -> None:
    right: list[bool] = []

    def timer(over: asyncio.Event) -> None:
        right.append(audit_passes())
        over.set()

    async def main() -> None:
        over = asyncio.Event()
        attach()
        asyncio.get_running_loop().call_soon(lambda: right.append(audit_passes()), context=Context())
        asyncio.get_running_loop().call_later(0, timer, over, context=Context())
        await over.wait()
        right.append(audit_passes())
        right.append(await asyncio.to_thread(audit_passes))

    loop.run_until_complete(main())
    assert right == [True] * 4
    assert audit_passes()


@pytest.mark.usefixtures("published")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with CPython 3.12")
def test_a_task_that_starts_at_once_is_published_with_its_own_span(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> int:
        running, wrong = asyncio.get_running_loop(), 0
        attach()
        for context in (Context(), copy_context()):
            coroutine: Coroutine[Any, Any, int] = _holds_a_span(3)
            task = asyncio.Task(coroutine, loop=running, context=context, eager_start=True)  # type: ignore[call-arg]
            wrong += not audit_passes()
            wrong += await task
        return wrong

    assert loop.run_until_complete(main()) == 0
    assert audit_passes()


@pytest.mark.usefixtures("published")
def test_a_span_of_a_generator_is_current_in_its_caller() -> None:
    def holds() -> Generator[bool, None, None]:
        token = attach()
        yield audit_passes()
        native.detach(token)

    generator = holds()
    assert next(generator)
    assert audit_passes()
    assert copy_context().run(audit_passes)
    generator.close()


def test_hooks_that_come_and_go_leave_every_method_as_it_was() -> None:
    run = Context.run
    for _ in range(3):
        with hooks(), hooks():
            attach()
            assert audit_passes()
        assert noticed_in(lambda: copy_context().run(current.set, context_with_span())) == 0
    assert Context.run is run
    native.uninstall()


def test_install_wants_a_context_variable() -> None:
    with pytest.raises(TypeError):
        native.install(object(), "key", object(), "attribute", Span, dict)  # type: ignore[arg-type]
    assert noticed_in(lambda: copy_context().run(int)) == 0


def test_thread_older_than_the_hooks_is_published_from_its_next_switch() -> None:
    there, go, right = threading.Event(), threading.Event(), []

    def body() -> None:
        run = copy_context().run
        there.set()
        go.wait()
        run(attach_and_look)
        right.append(audit_passes())

    def attach_and_look() -> None:
        attach()
        right.append(audit_passes())

    thread = threading.Thread(target=body)
    thread.start()
    there.wait()
    with hooks():
        go.set()
        thread.join()
    assert right == [True, True]


def test_hooks_that_come_and_go_keep_nothing() -> None:
    def cycle() -> None:
        with hooks():
            copy_context().run(lambda: native.detach(attach()))
            native.refresh()

    cycle()
    references, blocks = sys.getrefcount(current), sys.getallocatedblocks()
    for _ in range(300):
        cycle()
    assert sys.getrefcount(current) == references
    assert sys.getallocatedblocks() - blocks < 100


def test_eager_tasks_that_cannot_be_seen_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "builtin_module_names", (*sys.builtin_module_names, "_asyncio"))
    with hooks() as problems:
        names = [name for name, problem in problems if "eager tasks" in problem]
    assert names == (["PyContext_Enter"] if (3, 12) <= sys.version_info < (3, 14) else [])
