"""The event loops of asyncio that run, and the names of their tasks.

Runs on the sampler thread. Never imports asyncio, and runs no code of the application's classes.
"""

from __future__ import annotations

import re
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from splunk_profiler.system.guard import logger
from splunk_profiler.system.import_locks import is_loaded
from splunk_profiler.system.printable import printable

if TYPE_CHECKING:
    from splunk_profiler import _walker

_MAX_NAME_CHARACTERS = 128
_DEFAULT_NAME = re.compile(r"Task-\d+")


class RunningLoops:
    """Tells if the native walker reads the event loops that run right here."""

    def __init__(self, ticker: _walker.Ticker[Any, Any]) -> None:
        self._ticker = ticker
        self._reads_tasks: bool | None = None  # not tried yet

    def asyncio_in_c(self) -> ModuleType | None:
        """Return asyncio's module in C, if that is loaded and the walker reads its loops; else None."""
        if not is_loaded("_asyncio"):  # one that is half imported lacks names, and its functions crash (CPython 3.12)
            return None
        module = sys.modules["_asyncio"]
        return module if self._can_read(module) else None

    def _can_read(self, asyncio_in_c: ModuleType) -> bool:
        """Return True if the walker reads loops and coroutines right, as a trial on the calling thread shows once."""
        if self._reads_tasks is None:
            marker, generator, previous = object(), _suspended_generator(), asyncio_in_c._get_running_loop()
            asyncio_in_c._set_running_loop(marker)
            try:
                self._reads_tasks = self._ticker.reads_tasks(marker, *generator)
            finally:
                asyncio_in_c._set_running_loop(previous)
            if not self._reads_tasks:
                logger.warning("asyncio tasks and loops are not sampled: built for another CPython release; reinstall")
        return self._reads_tasks


def name_labels(*names: str | None) -> tuple[tuple[str, str], ...]:
    """Return the label with the first of a task's names that asyncio has not given: those differ for each task."""
    for name in names:
        if name and not _DEFAULT_NAME.fullmatch(name):
            return (("task.name", printable(name[:_MAX_NAME_CHARACTERS])),)
    return ()


def _suspended_generator() -> tuple[Any, CodeType, int]:
    """Return a generator, its code and its offset there."""
    generator: Any = (number for number in (1, 2))
    next(generator)
    return generator, generator.gi_code, generator.gi_frame.f_lasti
