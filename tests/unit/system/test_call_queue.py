"""Calls one at a time: within each other, from several threads, and with signal handlers that raise in the middle."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from splunk_profiler.system.call_queue import CallQueue
from splunk_profiler.system.threads import WakeEvent


class RaisedByHandlerError(BaseException):
    """The error that the signal handler of these tests raises."""


@pytest.fixture
def calls() -> CallQueue:
    return CallQueue()


def test_a_call_within_a_call_is_done_after_it(calls: CallQueue) -> None:
    done: list[str] = []

    def outer() -> None:
        calls.run(lambda: done.append("inner"), 60)
        done.append("outer")

    calls.run(outer, 60)
    assert done == ["outer", "inner"]


def test_an_exception_is_raised_after_what_waits_has_been_done(calls: CallQueue) -> None:
    done: list[str] = []

    def outer() -> None:
        calls.run(lambda: done.append("inner"), 60)
        raise RaisedByHandlerError

    with pytest.raises(RaisedByHandlerError):
        calls.run(outer, 60)
    calls.run(lambda: done.append("next"), 60)
    assert done == ["inner", "next"]


def test_a_call_of_another_thread_is_done_later_if_it_does_not_wait(calls: CallQueue) -> None:
    done: list[str] = []
    begun, go_on = WakeEvent(), WakeEvent()

    def long() -> None:
        begun.set()
        assert go_on.wait(60)
        done.append("long")

    thread = threading.Thread(target=calls.run, args=(long, 60))
    thread.start()
    assert begun.wait(60)
    calls.run(lambda: done.append("short"), 0)
    assert not done
    go_on.set()
    thread.join()
    assert done == ["long", "short"]


def test_a_call_waits_for_one_of_another_thread(calls: CallQueue) -> None:
    done: list[int] = []

    def record(number: int) -> None:
        before = len(done)
        sys.setswitchinterval(sys.getswitchinterval())
        assert len(done) == before
        done.append(number)

    def ask(number: int) -> None:
        for _ in range(50):
            calls.run(lambda: record(number), 60)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0] * 50 + [1] * 50 + [2] * 50 + [3] * 50


def test_endless_calls_do_not_hold_the_thread_that_asked_first(calls: CallQueue) -> None:
    here, ran_on = threading.get_ident(), [0]
    elsewhere = WakeEvent()

    def again() -> None:
        ran_on.append(threading.get_ident())
        if ran_on[-1] != here:
            elsewhere.set()
        elif len(ran_on) < 1000:
            calls.run(again, 60)

    calls.run(again, 60)
    assert elsewhere.wait(60)
    assert len(ran_on) < 100


@pytest.fixture
def _raising_handler() -> Iterator[None]:
    def handle(_number: int, _frame: FrameType | None) -> None:
        raise RaisedByHandlerError

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


def run_interrupted(
    calls: CallQueue, function: Callable[[], None], timeout_s: float, wanted: int, counts: Callable[[str, str], bool]
) -> bool:
    """Run `function`; have a handler raise at the counted event number `wanted`. Return False if there were fewer.

    A trace function runs wherever a signal handler can, and at more places.
    """
    seen = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith("call_queue.py"):
            return None
        if counts(frame.f_code.co_name, event):
            seen += 1
            if seen == wanted:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    with suppress(RaisedByHandlerError):
        calls.run(function, timeout_s)
    sys.settrace(None)
    return seen >= wanted


@pytest.mark.usefixtures("_raising_handler")
def test_a_call_that_was_asked_for_is_run_wherever_a_handler_raises() -> None:
    def counts(name: str, event: str) -> bool:
        # Inside a running call, its own function has to handle the exception: only its first event counts.
        return (name in ("run", "_run_waiting") and event == "line") or (name == "__call__" and event == "call")

    for wanted in range(1, 200):
        asked = False
        done: list[str] = []
        calls = CallQueue()

        def outer(calls: CallQueue = calls, done: list[str] = done) -> None:
            nonlocal asked
            calls.run(lambda: done.append("inner"), 60)
            asked = True

        reached = run_interrupted(calls, outer, 60, wanted, counts)
        calls.run(lambda: None, 60)
        assert not asked or "inner" in done, f"after an exception at line {wanted}"
        if not reached:
            break
    assert wanted > 20


@pytest.mark.usefixtures("_raising_handler")
@pytest.mark.parametrize("within", ["run", "_run_waiting", "__call__"])
def test_a_handler_that_raises_at_any_line_leaves_the_queue_usable(within: str) -> None:
    calls = CallQueue()
    for wanted in range(1, 100):
        done: list[int] = []
        reached = run_interrupted(calls, lambda: None, 0, wanted, lambda name, event: (name, event) == (within, "line"))
        calls.run(lambda done=done: done.append(1), 0)  # type: ignore[misc]
        assert done == [1], f"after an exception at line {wanted}"
        if not reached:
            break
    assert wanted > 2
