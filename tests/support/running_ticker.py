"""A ticker that runs on a thread of its own, as a sampler runs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from splunk_profiler.capture.walker import Ticker


@contextmanager
def running(ticker: Ticker, period_ns: int, focused_period_ns: int = 0) -> Iterator[None]:
    """Runs `ticker` until the block is left."""
    thread = threading.Thread(target=ticker.run, args=(period_ns, focused_period_ns))
    thread.start()
    try:
        yield
    finally:
        ticker.stop()
        thread.join()
