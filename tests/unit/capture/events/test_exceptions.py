"""Raised exceptions as the native walker records them: once each, at their place, in the right numbers."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty
from xml.parsers.expat import ParserCreate

import pytest
from recorded_exceptions import (
    ShopError,
    context,
    fail,
    labels,
    make,
    noticed,
    often,
    places,
    recorded,
    recording,
)

MAX_KEPT = 1024


def outer() -> None:
    fail()


def generate() -> Iterator[int]:
    yield 1


def parse() -> None:
    int("x")


def parse_in_c() -> None:
    parser = ParserCreate()  # its functions in C stand in tracebacks, as those of Cython do
    parser.StartElementHandler = int  # type: ignore[assignment]
    parser.Parse(b"<basket/>", True)


def parse_in_c_and_python() -> None:
    def handle(*_: object) -> None:
        fail()

    parser = ParserCreate()
    parser.StartElementHandler = handle
    parser.Parse(b"<basket/>", True)


def look_up() -> None:
    def missing() -> object:
        return basket  # type: ignore[name-defined]  # noqa: F821  # raises at its first instruction

    missing()


def sort() -> None:
    sorted([1, 2], key=lambda number: number / 0)


def raise_again() -> None:
    try:
        parse()
    except ValueError as error:
        try:
            raise
        except ValueError:
            raise error from None


def chain() -> None:
    try:
        parse()
    except ValueError as error:
        raise ShopError from error


def throw() -> None:
    generator = generate()
    next(generator)
    generator.throw(ShopError())  # type: ignore[attr-defined]


async def serve() -> None:
    await asyncio.sleep(0)
    fail()


def in_task() -> None:
    asyncio.run(serve())


def in_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(outer).result()


def recurse() -> None:
    recurse()


@recorded
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (outer, [("ShopError", "fail")]),
        (parse, [("ValueError", "parse")]),
        (parse_in_c, [("TypeError", "parse_in_c")]),
        (parse_in_c_and_python, [("ShopError", "fail")]),
        (look_up, [("NameError", "missing")]),
        (partial(exec, "basket"), [("NameError", "<module>")]),
        (sort, [("ZeroDivisionError", "<lambda>")]),
        (raise_again, [("ValueError", "parse")]),
        (chain, [("ValueError", "parse"), ("ShopError", "chain")]),
        (throw, [("ShopError", "generate")]),
        (in_thread, [("ShopError", "fail")]),
        (recurse, [("RecursionError", "recurse")]),
    ],
)
def test_exception_is_recorded_once_where_it_was_raised(
    work: Callable[[], object], expected: list[tuple[str, str]]
) -> None:
    kept = [one for one in noticed(work) if one.details[0] is not Empty]  # the pool's own
    assert places(kept) == expected
    assert [one.event_count for one in kept] == [1] * len(expected)


@recorded
def test_captures_of_exceptions_are_time_of_the_profiler() -> None:
    ticker = make()
    noticed(partial(often, 3), ticker)
    assert ticker.counters().event_ns_sum > 0


@recorded
def test_exception_in_a_task_is_recorded_once_at_its_place() -> None:
    kept = noticed(in_task)
    assert [place for place in places(kept) if place[0] == "ShopError"] == [("ShopError", "fail")]


@recorded
def test_control_flow_and_swallowed_exceptions_are_not_recorded() -> None:
    class Numbers:
        def __iter__(self) -> Numbers:
            return self

        def __next__(self) -> int:
            raise StopIteration

    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def work() -> None:
        list(generate())
        for _ in Numbers():
            pass
        generator = generate()
        next(generator)
        generator.close()  # type: ignore[attr-defined]
        hasattr(work, "missing")
        with suppress(KeyboardInterrupt, SystemExit):
            fail(KeyboardInterrupt)
        with suppress(SystemExit):
            sys.exit()
        asyncio.run(cancelled())

    kept = places(noticed(work))
    assert [place for place in kept if place[1] in ("work", "fail", "__next__", "generate", "cancelled")] == []
    assert {"CancelledError", "StopIteration", "GeneratorExit"}.isdisjoint(name for name, _ in kept)


@recorded
def test_exception_has_the_thread_context_and_labels_of_its_place() -> None:
    idents = {}

    def checkout(name: str) -> None:
        idents[name] = threading.get_ident()
        context.set(name)
        labels.set(name)
        often(1)

    def work() -> None:
        for name in ("one", "two"):
            thread = threading.Thread(target=checkout, args=(name,), name=name)
            thread.start()
            thread.join()

    kept = noticed(work)
    for one, name in zip(kept, ("one", "two"), strict=True):
        thread = one.thread
        assert (thread.context, thread.labels, thread.ident) == (name, name, idents[name])
        assert thread.python_thread is not None
        assert thread.python_thread.name == name
    assert kept[0].time_ns <= kept[1].time_ns


@recorded
def test_exception_and_its_frames_are_not_kept_alive() -> None:
    class Thing:
        pass

    def work() -> weakref.ref[Thing]:
        thing = Thing()
        alive = weakref.ref(thing)
        try:
            raise ShopError(thing)
        except ShopError:
            return alive

    ticker = make()
    with recording(ticker):
        alive = work()
    assert alive() is None
    assert len(ticker.drain_exceptions()) == 1


@recorded
def test_class_is_released_with_its_record_even_in_a_cycle_with_the_ticker() -> None:
    def leave_garbage(*, drains: bool) -> weakref.ref[type]:
        ticker = make()
        error = type("GoneError", (Exception,), {"ticker": ticker})
        with recording(ticker):
            often(3, error)
        if drains:
            assert len(ticker.drain_exceptions()) == 3
        return weakref.ref(error)

    for drains in (True, False):
        alive = leave_garbage(drains=drains)
        gc.collect()
        assert alive() is None


@recorded
@pytest.mark.parametrize("interval", [1, 10, 100])
def test_numbers_are_right_for_each_type_however_many_there_are(interval: int) -> None:
    """The sum has a deviation of about a sixteenth at most; 5 of these are seen once in millions of runs."""
    ticker = make(interval)
    counted: Counter[type[BaseException]] = Counter()
    mixed = [ShopError, ShopError, ShopError, KeyError]
    with recording(ticker):
        for _ in range(40):
            for error in mixed * 25:
                often(10, error)
            for one in ticker.drain_exceptions():
                counted[one.details[0]] += one.event_count
    assert counted[ShopError] == pytest.approx(30_000, rel=0.6)
    assert counted[KeyError] == pytest.approx(10_000, rel=0.9)


@recorded
def test_few_exceptions_are_all_recorded_with_an_interval_of_one() -> None:
    kept = noticed(partial(often, 60))
    assert [one.event_count for one in kept] == [1] * 60


@recorded
def test_storm_without_a_drain_is_bounded_and_its_number_complete() -> None:
    ticker = make()
    counts = []
    with recording(ticker):
        for _ in range(4):
            often(250_000)
            counts.append(len(noticed(partial(often, 0), make())))  # another ticker finds no id: nothing is its own
    kept = ticker.drain_exceptions()
    assert counts == [0] * 4
    assert 64 * 10 <= len(kept) <= MAX_KEPT
    assert sum(one.event_count for one in kept) == pytest.approx(1_000_000, rel=0.6)


@recorded
def test_ended_ticker_records_nothing_more() -> None:
    ticker = make()
    with recording(ticker):
        often(2)
        ticker.stop()
        often(2)
    assert len(ticker.drain_exceptions()) == 2


@recorded
def test_frames_beyond_the_depth_are_cut_at_the_root() -> None:
    (one,) = noticed(outer, make(max_depth=1))
    assert [frame.function for frame in one.thread.stack.frames] == ["fail"]
    assert one.thread.stack.truncated


@recorded
def test_callback_ignores_what_is_no_exception_and_never_raises() -> None:
    ticker = make()
    for arguments in ((), (None, 0, None), (None, 0, ShopError), (None, 0, ShopError()), (1, 2, 3, 4)):
        assert ticker.on_raise(*arguments) is None
    assert ticker.drain_exceptions() == []


@recorded
def test_random_numbers_of_the_application_stay_the_same() -> None:
    generator = random.Random(1)
    random.seed(1)
    noticed(partial(often, 1000), make(3))
    assert random.random() == generator.random()
