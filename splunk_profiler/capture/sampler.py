"""The sampling threads: tick → capture → record.

Two daemon threads. The ticker's waits for absolute deadlines and takes raw snapshots into a bounded ring; the
worker's drains the ring and does everything else, so that no deadline waits for Python work; it also sees to it that
the profiler keeps to its limit (`overhead`). What is done with a snapshot is a callable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.walker import Counters, Ticker
from splunk_profiler.raw import Periods, RawSnapshot
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import Signal, Worker

_DRAIN_TIMEOUT_NS = 1_000_000_000
_DEAREST_CAPTURE_NS = 2_000_000  # what took longer was interrupted: captures are timed, their CPU time is not read


@dataclass(frozen=True, slots=True)
class Limit:
    """What the profiler may use.

    Attributes:
        pacer: says how far apart snapshots are to be for that, as `Periods.leading_ns`.
        others_ns: CPU time that other threads have used on what this one captures.
        changed: called with the new distance, on the worker's thread.
    """

    pacer: OverheadLimiter
    others_ns: Callable[[], int]
    changed: Callable[[int], None]


class Sampler:
    """Runs a ticker and hands each of its snapshots on.

    Args:
        ticker: captures; stopped and never used again after `stop`.
        period_ns: distance between two deadlines of all threads, as long as the limit allows it; 0 if there are none.
        handle: called on the worker's thread with each raw snapshot, in order.
        limit: None if there is none.
        focused_period_ns: distance between two deadlines of the traces in the ticker's focus; 0 if there are none. The
            limit stretches it in the same ratio, because both are paid for by the same threads.
        rest: called on the worker's thread between snapshots, once a second at least.
    """

    def __init__(
        self,
        ticker: Ticker,
        period_ns: int,
        handle: Callable[[RawSnapshot], None],
        limit: Limit | None = None,
        *,
        focused_period_ns: int = 0,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._ticker = ticker
        self._configured = self._periods = Periods(period_ns, focused_period_ns)
        self._leading_ns = self._configured.leading_ns  # as the limit has it now
        self._handle = handle
        self._rest = rest
        self._limit = limit
        self._elsewhere_ns = 0  # used by captures on threads of the application
        self._counted = (0, 0, 0)  # of the ticker's counters, what is in there
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
                self._ticker.run(self._periods.all_ns, self._periods.focused_ns)
            if not self._stopping:  # it failed: begin again with the next period, not at once
                self._pause.wait(self._leading_ns / 1e9)

    def _work(self) -> None:
        while True:
            stopping = self._stopping  # read first: what was captured before the stop is still drained
            with self._guard.watching():
                for raw in self._ticker.drain(_DRAIN_TIMEOUT_NS):
                    with self._guard.watching():
                        self._handle(raw)
                    # What one of all threads costs contains those of the focus after it.
                    if not raw.focused and self._configured.all_leads:
                        with self._guard.watching():
                            self._keep_to_limit()
                with self._guard.watching():
                    self._rest()
                if not self._configured.all_leads:
                    with self._guard.watching():
                        self._keep_to_limit()
            if stopping:
                return

    def _keep_to_limit(self) -> None:
        limit, now_ns = self._limit, time.monotonic_ns()
        if limit is None or not limit.pacer.is_due(now_ns):
            return
        period_ns = limit.pacer.advance(now_ns, self._used_ns() + limit.others_ns())
        if period_ns != self._leading_ns:
            self._leading_ns = period_ns
            self._periods = self._configured.stretched(period_ns)
            self._ticker.pace(self._periods.all_ns, self._periods.focused_ns)
            limit.changed(period_ns)

    def _used_ns(self) -> int:
        """CPU time that taking the snapshots and handling them has used, on our threads and on the application's."""
        counters = self._ticker.counters()
        now = (counters.captured, counters.by_pending_call, counters.held_ns_sum)
        captured, elsewhere, held_ns = (new - old for new, old in zip(now, self._counted, strict=True))
        self._counted = now
        if captured > 0:
            self._elsewhere_ns += min(held_ns // captured, _DEAREST_CAPTURE_NS) * elsewhere
        return self._tick_thread.cpu_ns() + self._work_thread.cpu_ns() + self._elsewhere_ns
