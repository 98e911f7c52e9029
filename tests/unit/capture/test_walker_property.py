"""Stacks of arbitrary calls: the native walker sees what `sys._current_frames` sees."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import copy_context
from types import CodeType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")

from top_frames import top_frame
from walker_factory import blocked_thread, make, thread_of

Call = Callable[[], object]
Layer = Callable[[Call], object]


def plain(call: Call) -> object:
    return [
        1,
        call(),  # the line of the call is not that of the statement
    ]


def unrolled(call: Call) -> object:
    for _ in range(3):
        result = None
        with contextlib.suppress(ZeroDivisionError):
            try:
                _ = 1 // 0
            finally:
                result = call()
        if result is None:
            break
    return result


def recursive(call: Call) -> object:
    def again(depth: int) -> object:
        return again(depth - 1) if depth else call()

    return again(7)


def generator(call: Call) -> object:
    def values() -> Iterator[object]:
        yield 1
        yield call()

    return list(values())


def delegating(call: Call) -> object:
    def inner() -> Iterator[object]:
        yield call()

    def outer() -> Iterator[object]:
        yield from inner()

    return next(outer())


def drive(coroutine: Coroutine[Any, Any, object]) -> object:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it was to end")


def coroutine(call: Call) -> object:
    async def inner() -> object:
        return call()

    async def outer() -> object:
        return await inner()

    return drive(outer())


def asynchronous_iteration(call: Call) -> object:
    async def values() -> AsyncIterator[object]:
        yield call()

    async def consume() -> object:
        return [value async for value in values()]

    return drive(consume())


def class_body(call: Call) -> object:
    class Body:
        value = call()

    return Body.value


def constructor(call: Call) -> object:
    class Made:
        def __init__(self) -> None:
            self.value = call()

    return Made().value


def operators(call: Call) -> object:
    class Number:
        def __add__(self, other: object) -> object:
            return call()

        @property
        def value(self) -> object:
            return self + 1

        def __getattr__(self, name: str) -> object:
            return self.value

    return Number().missing


def executed(call: Call) -> object:
    namespace: dict[str, Any] = {"call": call}
    exec("def inner():\n\n\n    return call()\nresult = inner()", namespace)  # noqa: S102
    return namespace["result"]


def evaluated(call: Call) -> object:
    return eval("[call() for _ in '1'][0]", {"call": call})


def sort_key(call: Call) -> object:
    return sorted([1], key=lambda _: str(call()))


def reduced(call: Call) -> object:
    return functools.reduce(lambda _left, _right: str(call()), "ab")


def entered(call: Call) -> object:
    @contextlib.contextmanager
    def manager() -> Iterator[object]:
        yield call()

    with manager() as result:
        return result


def decorated(call: Call) -> object:
    @functools.lru_cache
    def cached(*_: object, **__: object) -> object:
        return call()

    return cached(*range(3), **{"key": 1})


LAYERS: list[Layer] = [
    plain,
    unrolled,
    recursive,
    generator,
    delegating,
    coroutine,
    asynchronous_iteration,
    class_body,
    constructor,
    operators,
    executed,
    evaluated,
    sort_key,
    reduced,
    entered,
    decorated,
    lambda call: call(),
    lambda call: [call() for _ in (1,)],
    lambda call: {key: call() for key in (1,)},
    lambda call: {str(call()) for _ in (1,)},
    lambda call: list(call() for _ in (1,)),  # noqa: C400  # a generator's frame below a C function
    lambda call: list(map(lambda _: call(), (1,))),  # noqa: C417
    lambda call: functools.partial(plain, call)(),
    lambda call: copy_context().run(call),
    lambda call: max([1], key=lambda _: hash(str(call()))),
]


def nested(layers: list[Layer], innermost: Call) -> object:
    call = innermost
    for layer in layers:
        call = functools.partial(layer, call)
    return call()


def resolved(code: CodeType, offset: int, _globals: dict[str, Any]) -> tuple[CodeType, int, int | None]:
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return code, offset, next(lines, None) if offset >= 0 else code.co_firstlineno


def by_python(ident: int | None) -> list[tuple[CodeType, int, int | None]]:
    assert ident is not None
    frame, seen = top_frame(ident), []
    while frame is not None:
        seen.append((frame.f_code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return seen


@settings(max_examples=150)
@given(st.lists(st.sampled_from(LAYERS), max_size=25))
def test_a_stack_that_holds_still_is_what_python_says(layers: list[Layer]) -> None:
    ticker = make(make_frame=resolved, max_depth=10_000)  # type: ignore[arg-type]  # any value names a frame
    with blocked_thread(lambda wait: nested(layers, wait)) as thread:
        frames, truncated = thread_of(ticker, thread).stack
        assert list(frames) == by_python(thread.ident)
        assert not truncated
        assert len(frames) >= len(layers)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(LAYERS), max_size=12))
def test_a_thread_that_captures_itself_sees_its_own_stack(layers: list[Layer]) -> None:
    ticker = make(make_frame=resolved, max_depth=10_000)  # type: ignore[arg-type]
    walks: list[list[CodeType]] = []

    def innermost() -> object:
        ticker.capture()
        frame, seen = sys._getframe(), list[CodeType]()
        while frame is not None:
            seen.append(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]
        walks.append(seen)
        return None

    nested(layers, innermost)
    (snapshot, *_) = ticker.drain(0)  # a layer may call more than once
    (own,) = [raw.stack[0] for raw in snapshot.threads if raw.ident == threading.get_ident()]
    assert [code for code, _, _ in own] == walks[0]
