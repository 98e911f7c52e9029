"""Records raised exceptions with a native ticker of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from splunk_profiler.capture.events.exceptions import ExceptionSource
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.capture.walker import choose_walker
from splunk_profiler.model import Stack
from splunk_profiler.raw import RecordedEvent
from splunk_profiler.system.threads import active_threads

monitoring: Any = getattr(sys, "monitoring", None)
IS_NATIVE = choose_walker("native").name == "native"
recorded = pytest.mark.skipif(monitoring is None or not IS_NATIVE, reason="exceptions are not recorded here")
context: ContextVar[Any] = ContextVar("context")
labels: ContextVar[Any] = ContextVar("labels")


class ShopError(Exception):
    """An error of the application."""


def make(interval: int = 1, max_depth: int = 100) -> Any:
    """Return a ticker that records one of `interval` exceptions."""
    from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems

    return _walker.Ticker(
        context_var=context,
        labels_var=labels,
        max_depth=max_depth,
        make_frame=Symbolizer().frame,
        make_stack=Stack,
        ring_size=4,
        threads=active_threads(),
        exception_interval=interval,
    )


@contextmanager
def recording(ticker: Any) -> Iterator[ExceptionSource]:
    """Record exceptions during the block."""
    source = ExceptionSource(ticker)
    source.start()
    try:
        yield source
    finally:
        source.stop()


def noticed(work: Callable[[], object], ticker: Any = None) -> list[RecordedEvent]:
    """Return the kept exceptions of `work`, which may end in one."""
    ticker = ticker or make()
    with suppress(Exception), recording(ticker):
        work()
    return [*ticker.drain_exceptions()]


def places(kept: list[RecordedEvent]) -> list[tuple[str, str]]:
    """Return the types and the functions that raised them."""
    return [(one.details[0].__name__, one.thread.stack.frames[0].function) for one in kept]


def fail(error: type[BaseException] = ShopError) -> None:
    """Raise that."""
    raise error


def often(count: int, error: type[BaseException] = ShopError) -> None:
    """Have `fail` raise that, `count` times."""
    for _ in range(count):
        with suppress(error):
            fail(error)
