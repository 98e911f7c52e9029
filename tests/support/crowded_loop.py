"""Tasks that wait, and a source that samples them. Needs the walker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

from splunk_profiler.capture.events.waiting_tasks import TaskEventSource
from splunk_profiler.raw import RawEvent


async def wait_in_task() -> None:
    await asyncio.Event().wait()


async def crowd(number: int, **names: str) -> list[asyncio.Task[None]]:
    """Return tasks that wait."""
    tasks = [asyncio.create_task(wait_in_task(), **names) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


class Sampled:
    """A source with clocks that stand still, but for what each sample takes: `wall_ns` and `cpu_ns`."""

    def __init__(self, ticker: Any, max_tasks: int, period_ns: int = 1, *, wall_ns: int = 0, cpu_ns: int = 0) -> None:
        self._now_ns = 7
        wall, cpu = count(0, wall_ns), count(0, cpu_ns)
        self.source = TaskEventSource(
            ticker, max_tasks, period_ns, lambda: self._now_ns + next(wall), lambda: next(cpu)
        )
        self.source.start()

    def after(self, elapsed_ns: int) -> Sequence[RawEvent]:
        """Return the events after this time."""
        self._now_ns += elapsed_ns
        return self.source.drain()
