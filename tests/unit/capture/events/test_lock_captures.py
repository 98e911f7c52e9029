"""The threads that the native walker finds to hold locks for which others wait."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from functools import partial
from threading import Condition, Lock, RLock
from typing import Any

import pytest
import walker_factory
from contended_locks import (
    KINDS,
    Storm,
    contended,
    enter,
    entering,
    functions_of,
    hold,
    holders,
    holding,
    nobody_holds,
    waiting,
)
from walker_factory import blocked_thread

from splunk_profiler.capture.events.lock_holders import LockHolderSource, reads_locks
from splunk_profiler.capture.walker import choose_walker, make_ticker

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the frames of CPython 3.10 do not tell")

NUMBER: ContextVar[int] = ContextVar("NUMBER")
LABEL: ContextVar[str] = ContextVar("LABEL")
SECOND_NS = 1_000_000_000


@pytest.fixture
def ticker() -> Iterator[Any]:
    made = make_ticker(choose_walker("native"), NUMBER, lambda _: None, 40, labels_var=LABEL)
    yield made
    made.stop()


MAKERS = [Lock, RLock, Condition, lambda: Condition(Lock())]


@pytest.mark.parametrize("make", MAKERS)
def test_lock_held_by_a_block_leads_to_stack_context_and_labels_of_holder(ticker: Any, make: Callable[[], Any]) -> None:
    lock = make()

    def work(wait: Callable[[], object]) -> None:
        NUMBER.set(7)
        LABEL.set("mine")
        hold(lock, wait)

    with contended(work, *[lock] * 3):
        (functions,) = holding(ticker, 3)
        ((thread, count),) = holders(ticker)
    assert functions[-6:-3] == ["wait", "hold", "work"]
    assert (count, thread.context, thread.labels, thread.state) == (3, 7, "mine", None)
    assert thread.python_thread is not None
    assert holders(ticker) == []


def test_known_stack_of_a_holder_that_has_not_moved_is_shared(ticker: Any) -> None:
    lock = Lock()
    with contended(partial(hold, lock), lock):
        holding(ticker, 1)
        ticker.capture()
        (snapshot,) = ticker.drain(0)
        ((thread, _),) = holders(ticker)
        (same,) = [raw for raw in snapshot.threads if raw.key == thread.key]
        assert thread.stack is same.stack


def test_block_in_c_code_is_held(ticker: Any) -> None:
    lock = Lock()
    reading, writing = os.pipe()

    def read(wait: Callable[[], object]) -> None:
        with lock:
            os.read(reading, 1)
        wait()

    thread = threading.Thread(target=read, args=(int,))
    thread.start()
    while not lock.locked():
        pass
    with waiting(lock):
        assert [functions[0] for functions in holding(ticker, 1)] == ["read"]
        os.write(writing, b"x")
    thread.join()
    os.close(reading)
    os.close(writing)


def test_nested_blocks_are_all_held(ticker: Any) -> None:
    locks: list[Any] = [Lock(), Condition(Lock()), Lock(), RLock(), Lock()]
    free = Lock()

    def inner(wait: Callable[[], object]) -> object:
        try:
            raise ValueError
        except ValueError:
            with free, locks[3]:
                pass
            with locks[3], locks[4]:
                return wait()

    def work(wait: Callable[[], object]) -> None:
        for lock in locks[:1]:
            with lock, locks[1] as _:
                try:
                    pass
                finally:
                    with locks[2]:
                        {each: each(wait) for each in (inner,)}

    with contended(work, *locks):
        (functions,) = holding(ticker, 5)
    assert functions.index("inner") < functions.index("work")


def test_each_of_several_holders_has_those_that_wait_for_it(ticker: Any) -> None:
    first, second = Lock(), RLock()
    with blocked_thread(lambda wait: hold(first, wait)), contended(partial(hold, second), second, second):
        thread = threading.Thread(target=enter, args=(first,))
        thread.start()
        assert len(holding(ticker, 3)) == 2
        assert sorted(count for _, count in holders(ticker)) == [1, 2]
    thread.join()


def test_owner_of_an_rlock_is_known_however_it_was_acquired(ticker: Any) -> None:
    lock = RLock()

    def work(wait: Callable[[], object]) -> None:
        lock.acquire()
        wait()
        lock.release()

    with contended(work, lock):
        (functions,) = holding(ticker, 1)
    assert "work" in functions


@pytest.mark.parametrize("make", [RLock, Condition])
def test_thread_that_enters_a_free_lock_does_not_wait_for_itself(ticker: Any, make: Callable[[], Any]) -> None:
    """CPython switches threads at the end of a call: then the thread has the lock, and seems to enter it still."""
    lock, entries, is_over = make(), [0], threading.Event()

    def reenter() -> None:
        while not is_over.is_set():
            with lock:
                entries[0] += 1

    thread = threading.Thread(target=reenter)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # each look is at another place
    thread.start()
    try:
        seen: set[int] = set()
        while len(seen) < 100:
            assert holders(ticker) == []
            seen.add(entries[0])
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval_s)


def test_lock_that_was_acquired_by_a_call_has_no_known_holder(ticker: Any) -> None:
    lock = Lock()

    def work(wait: Callable[[], object]) -> None:
        lock.acquire()
        wait()
        lock.release()

    with contended(work, lock):
        assert nobody_holds(ticker)


@pytest.mark.parametrize("make", [RLock, Lock])
@pytest.mark.parametrize("wait_for", [False, True])
def test_thread_that_waits_for_a_condition_holds_only_other_locks(
    ticker: Any, make: Callable[[], Any], wait_for: bool
) -> None:
    outer, condition = Lock(), Condition(make())
    changed: list[int] = []

    def await_change() -> None:
        with outer, condition:
            condition.wait_for(lambda: changed) if wait_for else condition.wait()

    thread = threading.Thread(target=await_change)
    thread.start()
    while not condition._waiters:  # type: ignore[attr-defined]
        pass

    def work(wait: Callable[[], object]) -> None:
        condition.acquire()
        if make is RLock:
            wait()
        else:
            with blocked_thread(lambda wait_inside: wait_inside()):
                wait()
        condition.release()

    with contended(work, condition):
        if make is Lock:
            assert nobody_holds(ticker)
        else:
            assert "work" in holding(ticker, 1)[0]
    with contended(partial(hold, condition), condition):
        assert "hold" in holding(ticker, 1)[0]
    changed.append(1)
    with waiting(outer):
        assert "await_change" in holding(ticker, 1)[0]
        with condition:
            condition.notify_all()
    thread.join()


def numbers(lock: Any, wait: Callable[[], object]) -> Generator[int, None, None]:
    with lock:
        yield 1
        wait()
        yield 2


def test_generator_holds_a_lock_while_it_runs(ticker: Any) -> None:
    lock = Lock()
    running = numbers(lock, int)
    next(running)
    with waiting(lock):
        assert nobody_holds(ticker), "it is on no thread's stack"
        running.close()

    with contended(lambda wait: list(numbers(lock, wait)), lock):
        assert holding(ticker, 1)[0][-6:-4] == ["wait", "numbers"]


def test_coroutine_holds_a_lock_and_locks_of_asyncio_do_no_harm(ticker: Any) -> None:
    lock = Lock()

    async def work(wait: Callable[[], object]) -> None:
        async with asyncio.Lock(), asyncio.Condition():
            await asyncio.sleep(0)
            with lock:
                wait()

    with contended(lambda wait: asyncio.run(work(wait)), lock):
        assert "work" in holding(ticker, 1)[0]


class Manager:
    """A context manager of the application; nothing else of it may be called or read."""

    gate = Lock()
    __enter__ = staticmethod(gate.acquire)

    def __exit__(self, *_: object) -> None:
        self.gate.release()

    def __getattribute__(self, name: str) -> Any:
        assert name == "gate"
        return object.__getattribute__(self, name)


def test_context_managers_of_the_application_are_not_touched(ticker: Any) -> None:
    manager = Manager()
    with contended(partial(hold, manager), manager):
        assert nobody_holds(ticker)


def test_walker_tells_if_it_reads_locks_right(ticker: Any) -> None:
    assert reads_locks(ticker, KINDS)
    lock, rlock = Lock(), RLock()
    assert not ticker.reads_locks(lock, KINDS), "there is no block"
    with lock:
        assert ticker.reads_locks(lock, KINDS)
        assert not ticker.reads_locks(rlock, KINDS)
        with rlock:
            assert ticker.reads_locks(rlock, KINDS)
            assert not ticker.reads_locks(lock, KINDS)
            lock_type, _, condition, wait = KINDS
            assert not ticker.reads_locks(lock, (lock_type, lock_type, condition, wait))


def test_captures_of_holders_leave_no_references(ticker: Any) -> None:
    lock, condition = Lock(), Condition(Lock())
    counts = []
    with contended(lambda wait: hold(lock, partial(hold, condition, wait)), lock, condition):
        holding(ticker, 2)
        for _ in range(4):
            found = holders(ticker)
            places = ticker.entered_places()
            del found, places
            objects = (lock, condition, vars(condition)["_lock"], hold.__code__, enter.__code__)
            counts.append([sys.getrefcount(each) for each in objects])
    assert counts[2] == counts[3]


@pytest.mark.parametrize("arguments", [(), ([],), ((), KINDS), ([], KINDS[:3]), ([], (1, 2, 3, 4)), ([], KINDS, 1)])
def test_capture_lock_holders_refuses_other_arguments(ticker: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        ticker.capture_lock_holders(*arguments)


def test_places_that_are_none_are_left_out(ticker: Any) -> None:
    lock = Lock()
    with contended(partial(hold, lock), lock):
        holding(ticker, 1)
        others = [None, (), (enter.__code__,), (enter.__code__, "x"), (enter.__code__, 1 << 80), (1, 2)]
        assert ticker.capture_lock_holders(others, KINDS) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the collector, if it runs meanwhile
def test_captures_of_holders_without_memory_fail_cleanly(ticker: Any) -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    lock, failed = Lock(), 0
    with contended(partial(hold, lock), lock):
        holding(ticker, 1)
        for nth in range(60):
            places = entering(ticker)
            testing.set_nomemory(nth, nth + 1)  # only that allocation fails
            try:
                ticker.entered_places()
                ticker.capture_lock_holders(places, KINDS)
            except (MemoryError, SystemError):
                failed += 1
            finally:
                testing.remove_mem_hooks()
            assert len(holders(ticker)) == 1
    assert 0 < failed < 60


def test_failing_constructor_fails_one_capture_of_holders() -> None:
    failures = [ValueError("once")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return arguments

    ticker = walker_factory.make(make_stack=fail_once)
    lock = Lock()
    with contended(partial(hold, lock), lock):
        with pytest.raises(ValueError, match="once"):
            holding(ticker, 1)
        assert len(holders(ticker)) == 1


def test_holders_are_inside_of_blocks_while_threads_come_and_go(ticker: Any) -> None:
    storm, seen = Storm(), 0
    threads = [threading.Thread(target=storm.run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        while seen < 300:
            for raw, count in holders(ticker):
                seen += count
                assert {"hold_some", "yield_some"} & {*functions_of(raw)}
    finally:
        storm.are_over.set()
        for thread in threads:
            thread.join()


def test_source_gives_the_time_of_all_that_wait_to_the_holder(ticker: Any) -> None:
    now_ns, used_ns, lock = [0], [0], Lock()
    source = LockHolderSource(ticker, KINDS, lambda: now_ns[0], lambda: used_ns[0])
    source.start()
    with contended(partial(hold, lock), lock, lock):
        holding(ticker, 2)
        now_ns[0] += SECOND_NS
        (event,) = source.drain()
        assert (event.event.count, event.event.amount) == (2, 2 * SECOND_NS)
        assert "hold" in functions_of(event.thread)
        source.stop()
        assert source.drain() == ()
    source.start()
    now_ns[0] += SECOND_NS
    assert source.drain() == ()
