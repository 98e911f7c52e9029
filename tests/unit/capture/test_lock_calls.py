"""Calls that wait for locks in C, found in the bytecode of their callers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from splunk_profiler.capture.lock_calls import lock_call

FOUND: list[str] = []
TIMEOUT_S = 60.0


def _note(*_: Any, **__: Any) -> bool:
    caller = sys._getframe(1)
    FOUND.append(lock_call(caller.f_code, caller.f_lasti))
    return True


NOTE = partial(_note)


class Lock:
    """Its methods are C code for their callers, and note where these are."""

    __enter__ = __exit__ = acquire = release = get = staticmethod(partial(_note))
    other: Any = acquire


class Shop:
    """Has locks."""

    lock, other_lock, timeout = Lock(), Lock(), 60.0


def enter(shop: Shop) -> None:
    with shop.lock:
        pass


def enter_two(shop: Shop) -> None:
    with shop.lock, shop.other_lock as _:
        pass


def acquire(shop: Shop) -> None:
    shop.lock.acquire()
    shop.lock.release()


def acquire_with_arguments(shop: Shop) -> None:
    timeout = shop.timeout
    lock = shop.lock
    lock.acquire(True, timeout=timeout)
    lock.acquire(False, TIMEOUT_S)
    lock.release()


def get(shop: Shop) -> None:
    shop.lock.get()
    shop.lock.get(True, timeout=TIMEOUT_S)
    shop.lock.get(True)
    shop.lock.get(True, 5)
    shop.lock.get(True, TIMEOUT_S)


def look_up(shop: Shop) -> None:
    shop.lock.get(shop)
    shop.lock.get(TIMEOUT_S, None)
    shop.lock.get(TIMEOUT_S, True)
    shop.lock.get(False)
    shop.lock.get(1, 5)


def call_others(shop: Shop) -> None:
    take = shop.lock.acquire
    take()
    shop.lock.other()
    shop.lock.acquire(NOTE())


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (enter, ["with", ""]),
        (enter_two, ["with", "with", "", ""]),
        (acquire, ["acquire", ""]),
        (acquire_with_arguments, ["acquire", "acquire", ""]),
        (get, ["get"] * 5),
        (look_up, [""] * 5),
        (call_others, ["", "", "", ""]),
    ],
)
def test_lock_call_knows_with_acquire_and_get_only(work: Callable[[Shop], None], expected: list[str]) -> None:
    FOUND.clear()
    work(Shop())
    assert expected == FOUND


def test_lock_call_of_code_that_has_not_started_is_empty() -> None:
    assert lock_call(enter.__code__, -1) == ""


def test_lock_call_with_many_names_finds_the_right_one() -> None:
    lines = [f"if False: x.name{number}" for number in range(700)]
    lines[400] = "x.acquire()"
    FOUND.clear()
    exec("\n".join([*lines, "x.release()"]), {"x": Lock()})  # noqa: S102
    assert FOUND == ["acquire", ""]
