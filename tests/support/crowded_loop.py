"""Tasks that wait, and a source that samples them. Needs the walker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from splunk_profiler.capture.events.waiting_tasks import TaskEventSource
from splunk_profiler.raw import RawEvent


async def wait_in_task() -> None:
    await asyncio.Event().wait()


async def crowd(count: int, **names: str) -> list[asyncio.Task[None]]:
    """Return tasks that wait."""
    tasks = [asyncio.create_task(wait_in_task(), **names) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


class Sampled:
    """A source with a clock that stands still."""

    def __init__(self, ticker: Any, max_tasks: int, period_ns: int = 1) -> None:
        self._now_ns = 7
        self.source = TaskEventSource(ticker, max_tasks, period_ns, lambda: self._now_ns)
        self.source.start()

    def after(self, elapsed_ns: int) -> Sequence[RawEvent]:
        """Return the events after this time."""
        self._now_ns += elapsed_ns
        return self.source.drain()
