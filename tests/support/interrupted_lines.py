"""An exception that comes at a chosen line, as that of a signal handler may come at any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType, ModuleType
from typing import Any


class TimeIsUpError(BaseException):
    """An exception that a signal handler of the application raises."""


def is_interrupted(work: Callable[[], object], module: ModuleType, line: int) -> bool:
    """Run `work`, raise in the `line`-th line of `module` that it executes; return True if it got there."""
    left = count(1 - line)

    def notice(frame: FrameType, event: str, _argument: Any) -> Any:
        # Python ignores what is raised in `__del__`.
        if frame.f_code.co_filename != module.__file__ or frame.f_code.co_name == "__del__":
            return None
        if event == "line" and next(left) == 0:
            raise TimeIsUpError
        return notice

    before = sys.gettrace()
    sys.settrace(notice)
    try:
        work()
    except TimeIsUpError:
        return True
    finally:
        sys.settrace(before)
    return False
