"""Tickers and blocked threads for the tests of the native walker.

Import it after `pytest.importorskip("splunk_profiler._walker")`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import Any

from splunk_profiler import _walker
from splunk_profiler.raw import RawThread

Frames = tuple[str, ...]
Ticker = _walker.Ticker[str, Any]
LONG_NS = 30_000_000_000
current: ContextVar[object] = ContextVar("current")


class Thing:
    """An object with weak references."""


def name(code: CodeType, _offset: int, _globals: dict[str, Any]) -> str:
    return code.co_name


def pair(frames: Frames, truncated: bool) -> tuple[Frames, bool]:
    return frames, truncated


def make(
    *,
    context_var: Any = current,
    labels_var: Any = None,
    max_depth: int = 100,
    make_frame: Callable[[CodeType, int, dict[str, Any]], str] = name,
    make_stack: Callable[[Frames, bool], Any] = pair,
    ring_size: int = 4,
    min_collection_interval_ns: int = 0,
    trace_filter: tuple[dict[int, Any], str] | None = None,
    threads: dict[int, threading.Thread] | None = None,
    exception_interval: int = 1,
    skips_quiet: bool = False,
) -> Ticker:
    return _walker.Ticker(
        context_var=context_var,
        labels_var=labels_var,
        max_depth=max_depth,
        make_frame=make_frame,
        make_stack=make_stack,
        ring_size=ring_size,
        min_collection_interval_ns=min_collection_interval_ns,
        trace_filter=trace_filter,
        threads={} if threads is None else threads,
        exception_interval=exception_interval,
        skips_quiet=skips_quiet,
    )


@contextmanager
def blocked_thread(inside: Callable[[Callable[[], object]], object]) -> Iterator[threading.Thread]:
    """Run a thread that calls `inside(wait)` and waits there until the block ends."""
    ready, finished = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        finished.wait()

    thread = threading.Thread(target=inside, args=(wait,))
    thread.start()
    ready.wait()
    try:
        yield thread
    finally:
        finished.set()
        thread.join()


@contextmanager
def running(ticker: Ticker, period_ns: int) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=ticker.run, args=(period_ns,))
    thread.start()
    try:
        yield thread
    finally:
        ticker.stop()
        thread.join()


def thread_of(ticker: Ticker, thread: threading.Thread) -> RawThread:
    ticker.capture()
    (snapshot,) = ticker.drain(0)
    return next(raw for raw in snapshot.threads if raw.ident == thread.ident)


def recursion(depth: int, wait: Callable[[], object]) -> object:
    return recursion(depth - 1, wait) if depth else wait()
