"""Chosen lines: an exception at one, as that of a signal handler may come at any, or what another thread does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType, ModuleType
from typing import Any


class TimeIsUpError(BaseException):
    """An exception that a signal handler of the application raises."""


class SoftTimeLimitError(Exception):
    """An exception that a signal handler raises, which is an `Exception` as those of Celery and RQ are."""


def is_interrupted(work: Callable[[], object], module: ModuleType, line: int) -> bool:
    """Run `work`, raise in the `line`-th line of `module` that it executes; return True if it got there."""

    def interrupt() -> None:
        raise TimeIsUpError

    try:
        return call_at_line(work, module, line, interrupt)
    except TimeIsUpError:
        return True


def is_interrupted_by_signal(work: Callable[[], object], module: ModuleType, line: int) -> bool:
    """Return the same where the handler of a real signal raises an `Exception`, which must come out of `work`."""

    def raise_error(*_: object) -> None:
        raise SoftTimeLimitError

    before = signal.signal(signal.SIGALRM, raise_error)
    try:
        was_called = call_at_line(work, module, line, lambda: signal.raise_signal(signal.SIGALRM))
    except SoftTimeLimitError:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not was_called, f"an exception at line {line} is lost"
    return False


def call_at_line(work: Callable[[], object], module: ModuleType, line: int, action: Callable[[], object]) -> bool:
    """Run `work`, and `action` before the `line`-th line of `module` that it executes; return True if it got there."""
    was_called = False
    left = count(1 - line)

    def notice(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal was_called
        # Python ignores what is raised in `__del__`.
        if frame.f_code.co_filename != module.__file__ or frame.f_code.co_name == "__del__":
            return None
        if event == "line" and next(left) == 0:
            was_called = True
            action()
        return notice

    before = sys.gettrace()
    sys.settrace(notice)
    try:
        work()
    finally:
        sys.settrace(before)
    return was_called
