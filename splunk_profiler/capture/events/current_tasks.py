"""The names of the asyncio tasks that run: a callback that blocks its event loop gets the name of its task.

Asked for on the sampling worker's thread when it drains the ticker: twenty times a second at most, and at least twice.
A task that ends in that instant may be freed there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from splunk_profiler.capture.events.running_loops import RunningLoops, coroutine_name, given_name
from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.raw import RawTask
from splunk_profiler.system.clocks import boottime_ns

if TYPE_CHECKING:
    from splunk_profiler import _walker


class CurrentTaskSource(EventSource):
    """The source of the names of running tasks: their own, or the coroutine's for one that asyncio has named."""

    def __init__(self, ticker: _walker.Ticker[Any, Any]) -> None:
        self._loops = RunningLoops(ticker)
        self._is_recording = False

    def start(self) -> None:
        """Start recording."""
        self._is_recording = True

    def stop(self) -> None:
        """Stop recording."""
        self._is_recording = False

    def drain(self) -> Sequence[RawTask]:
        """Return the tasks that run now."""
        if not self._is_recording:
            return ()
        seen = []
        for loop, key in self._loops.list():
            name = _current_name(sys.modules["_asyncio"], loop)
            if name:
                seen.append(RawTask(key, boottime_ns(), name))
        return seen


def make_current_task_source(config: Config, ticker: Ticker, native: bool) -> CurrentTaskSource | None:
    """Return the source; None where blocked event loops are not found."""
    if not (native and config.loop_blocked_ms):
        return None
    native_ticker: Any = ticker
    return CurrentTaskSource(native_ticker)


def _current_name(asyncio_in_c: ModuleType, loop: Any) -> str:
    """Return the name of the task that a loop runs; empty without one, or if it is not asyncio's own in C."""
    task_type, task = asyncio_in_c.Task, _current_task(asyncio_in_c, loop)
    try:
        return given_name(task_type, task) or coroutine_name(task_type, task)
    except TypeError:
        return ""


def _current_task(asyncio_in_c: ModuleType, loop: Any) -> Any:
    """Return the task that a loop runs, or None.

    Up to CPython 3.13 tasks are in a dict. It is not asked for the loop: this could run the loop's `__hash__`.
    """
    tasks = getattr(asyncio_in_c, "_current_tasks", None)
    if tasks is None:
        return asyncio_in_c.current_task(loop)
    return next((task for each, task in list(tasks.items()) if each is loop), None)
