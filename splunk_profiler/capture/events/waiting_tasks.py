"""Suspended asyncio tasks as events: a few of them at a time, each with its stack, span and labels.

The native walker reads their stacks. This module chooses them, on the sampler thread. It reads what asyncio
knows of its tasks, never imports asyncio, and runs no code of the application's classes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from splunk_profiler.capture.events.running_loops import RunningLoops, name_labels
from splunk_profiler.capture.events.source import PacedSource
from splunk_profiler.config import Config
from splunk_profiler.model import Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent
from splunk_profiler.system import clocks

if TYPE_CHECKING:
    from splunk_profiler import _walker

TASK_KIND = EventKind("task", count=ValueType("tasks", "count"), amount=ValueType("task_wait", "nanoseconds"))
WAITING_LABELS = (("thread.state", "waiting task"),)
_MIN_PERIOD_NS = 1_000_000_000
_MAX_PROBED = 1024  # tasks of which the walker finds out if they wait
_STARTS = 64


class TaskEventSource(PacedSource):
    """The source of waiting tasks: at most `max_tasks` of them, every `period_ns` or less often.

    Each stands for its share of all tasks, and for the time since they were sampled before.
    """

    def __init__(
        self,
        ticker: _walker.Ticker[Any, Any],
        max_tasks: int,
        period_ns: int,
        monotonic_ns: Callable[[], int] = clocks.monotonic_ns,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        super().__init__(max(period_ns, _MIN_PERIOD_NS), monotonic_ns, cpu_ns)
        self._ticker = ticker
        self._max_tasks = max_tasks
        self._random = Random()  # the application may have seeded the shared one
        self._loops = RunningLoops(ticker)

    def _look(self, since_ns: int) -> list[RawEvent]:
        asyncio_in_c = self._loops.asyncio_in_c()  # without it, tasks are made in Python
        if asyncio_in_c is None or not (loops := self._ticker.running_loops()):
            return []
        known, task_type = _known_tasks(asyncio_in_c, [loop for loop, _ in loops]), asyncio_in_c.Task
        known_count = len(known)
        probed = [each if type(each) is ref else ref(each) for each in self._choose(known)]
        del known  # a task that ends during the capture must be freed on its own thread: its finaliser calls the loop
        self._random.shuffle(probed)  # the walker takes every so many of those that wait
        time_ns = time.time_ns()
        captured, waiting = self._ticker.capture_tasks(probed, task_type, self._max_tasks)
        total = waiting * known_count // max(len(probed), 1)
        events = []
        for number, (thread, name) in enumerate(captured):
            count = (total + number) // len(captured)  # the sum of all is `total`
            event = Event(TASK_KIND, WAITING_LABELS, count, count * since_ns)
            events.append(RawEvent(time_ns, thread, event, name_labels(name)))
        return events

    def _choose(self, known: list[Any]) -> list[Any]:
        """Return about `_MAX_PROBED` at most, in a few steps: a task that ends meanwhile would be freed here.

        They are evenly spread from many random ones on: kinds of tasks may take turns in the list.
        """
        step = _STARTS * (-(-len(known) // _MAX_PROBED) or 1)
        starts = self._random.sample(range(step), _STARTS)
        return [task for start in starts for task in known[start::step]]


def make_task_source(config: Config, ticker: Any, native: bool) -> TaskEventSource | None:
    """Return the source; None if it is off, or without the native walker."""
    if not (native and config.max_tasks):
        return None
    return TaskEventSource(ticker, config.max_tasks, config.period_ns)


def _known_tasks(asyncio_in_c: ModuleType, loops: Sequence[Any]) -> list[Any]:
    """Return the tasks that have not ended, or weak references to all, even of event loops that do not run.

    Before CPython 3.14 asyncio has these references in a set. Its copy is made in one call into C.
    """
    list_tasks = getattr(asyncio_in_c, "all_tasks", None)
    if list_tasks is not None:
        return [task for loop in loops for task in list_tasks(loop)]
    in_python = vars(sys.modules.get("asyncio.tasks"))
    weak_set = in_python.get("_scheduled_tasks", in_python.get("_all_tasks"))  # CPython 3.12 has renamed it
    return list(vars(weak_set)["data"])
