"""A source of blocked event loops with its ticker, and loops to block; shared by tests of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from splunk_profiler.capture.events.blocked_loops import BlockedLoopSource
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.raw import RawEvent

LABELS: ContextVar[Any] = ContextVar("labels")
SECOND_NS = 1_000_000_000


class Bench:
    """A source of callbacks that take a nanosecond or longer, and its ticker, which looks when it is told to.

    The limit has slowed its looks down by `ratio` before it finds asyncio.
    """

    def __init__(self, threshold_ns: int = 1, ratio: float = 1.0) -> None:
        ticker: Any = make_ticker(choose_walker("native"), ContextVar("unused"), lambda _: None, 20, labels_var=LABELS)
        self.ticker = ticker
        self.source = BlockedLoopSource(ticker, threshold_ns)
        self.source.start()
        self.source.slow_down(ratio)
        self.source.drain()

    def look(self, count: int = 1) -> None:
        for _ in range(count):
            self.ticker.capture()
            self.ticker.drain(0)

    def found(self) -> list[tuple[str, str]]:
        """Return the task and the function of each event, of this module's functions."""
        return [(dict(event.labels).get("task.name", ""), functions(event)[0]) for event in self.source.drain()]


def functions(event: RawEvent) -> list[str]:
    """Return the functions of tests and their helpers on its stack, innermost first."""
    frames = event.thread.stack.frames
    return [frame.function.rpartition(".")[2] for frame in frames if "test" in frame.file]


def new_event_loop(library: str) -> asyncio.AbstractEventLoop:
    module = pytest.importorskip(library, reason=f"{library} is not installed for this interpreter")
    loop: asyncio.AbstractEventLoop = module.new_event_loop()
    return loop


def run(make: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop | None = None) -> None:
    loop = loop or asyncio.new_event_loop()
    try:
        loop.run_until_complete(make())
    finally:
        loop.close()
