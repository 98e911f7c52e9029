"""The sampling threads: tick → capture → record.

Two daemon threads. The ticker's waits for absolute deadlines and takes raw snapshots into a bounded ring; the
worker's drains the ring and does everything else, so that no deadline waits for Python work. Must not import
sinks, formats or OpenTelemetry: what is done with a snapshot is a callable.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from splunk_profiler.capture import Counters, RawSnapshot, Ticker
from splunk_profiler.guard import Guard
from splunk_profiler.threads import Signal, Worker

_DRAIN_TIMEOUT_NS = 1_000_000_000


class Sampler:
    """Runs a ticker and hands each of its snapshots on.

    Args:
        ticker: captures; stopped and never used again after `stop`.
        period_ns: distance between two deadlines of all threads; 0 if there are none.
        handle: called on the worker's thread with each raw snapshot, in order.
        focused_period_ns: distance between two deadlines of the traces in the ticker's focus; 0 if there are none.
        rest: called on the worker's thread between snapshots, once a second at least.
    """

    def __init__(
        self,
        ticker: Ticker,
        period_ns: int,
        handle: Callable[[RawSnapshot], None],
        *,
        focused_period_ns: int = 0,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._ticker = ticker
        self._period_ns = period_ns
        self._focused_period_ns = focused_period_ns
        self._handle = handle
        self._rest = rest
        self._stopping = False
        self._guard = Guard("the sampling thread")
        self._pause = Signal()
        self._tick_thread = Worker("ticker", self._tick)
        self._work_thread = Worker("sampler", self._work)

    def start(self) -> None:
        """Start both threads.

        Raises:
            RuntimeError: the process can make no more threads.
        """
        self._work_thread.start()
        self._tick_thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop both; what is in the ring is handled. True if they ended within `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        self._stopping = True
        self._ticker.stop()
        self._pause.set()
        ended = [thread.join(max(until - time.monotonic(), 0.0)) for thread in (self._work_thread, self._tick_thread)]
        return all(ended)

    def counters(self) -> Counters:
        """Ticks due, taken, missed and late since the start."""
        return self._ticker.counters()

    def _tick(self) -> None:
        while not self._stopping:
            with self._guard.watching():
                self._ticker.run(self._period_ns, self._focused_period_ns)
            if not self._stopping:  # it failed: begin again with the next period, not at once
                self._pause.wait((self._period_ns or self._focused_period_ns) / 1e9)

    def _work(self) -> None:
        while True:
            stopping = self._stopping  # read first: what was captured before the stop is still drained
            with self._guard.watching():
                for raw in self._ticker.drain(_DRAIN_TIMEOUT_NS):
                    with self._guard.watching():
                        self._handle(raw)
                with self._guard.watching():
                    self._rest()
            if stopping:
                return
