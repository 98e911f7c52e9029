"""A ticker on its own thread, as a sampler runs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from splunk_profiler.capture.walker import Ticker


@contextmanager
def running(ticker: Ticker, period_ns: int, focused_period_ns: int = 0, phase_ns: int = 0) -> Iterator[None]:
    """Run `ticker` until the block ends."""
    thread = threading.Thread(target=ticker.run, args=(period_ns, focused_period_ns, phase_ns))
    thread.start()
    try:
        yield
    finally:
        ticker.stop()
        thread.join()
