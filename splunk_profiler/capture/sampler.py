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
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.raw import Periods, RawSnapshot, TickerCounters
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import WakeEvent, Worker

_DRAIN_TIMEOUT_NS = 1_000_000_000
_MAX_CAPTURE_COST_NS = 2_000_000  # what took longer was interrupted: captures are timed, their CPU time is not read


@dataclass(frozen=True, slots=True)
class OverheadLimit:
    """What the profiler may use.

    Attributes:
        limiter: says how far apart snapshots are to be for that, as `Periods.base_ns`.
        other_threads_cpu_ns: CPU time that other threads have used on what this one captures.
        on_period_change: called with the new distance, on the worker's thread.
    """

    limiter: OverheadLimiter
    other_threads_cpu_ns: Callable[[], int]
    on_period_change: Callable[[int], None]


class Sampler:
    """Runs a ticker and hands each of its snapshots on.

    Args:
        ticker: captures; stopped and never used again after `stop`.
        period_ns: distance between two deadlines of all threads, as long as the limit allows it; 0 if there are none.
        handle: called on the worker's thread with each raw snapshot, in order.
        limit: None if there is none.
        focused_period_ns: distance between two deadlines of the traces in the ticker's focus; 0 if there are none. The
            limit stretches it in the same ratio, because both are paid for by the same threads.
        flush_if_due: called on the worker's thread between snapshots, once a second at least.
    """

    def __init__(
        self,
        ticker: Ticker,
        period_ns: int,
        handle: Callable[[RawSnapshot], None],
        limit: OverheadLimit | None = None,
        *,
        focused_period_ns: int = 0,
        flush_if_due: Callable[[], None] = lambda: None,
    ) -> None:
        self._ticker = ticker
        self._configured = self._periods = Periods(period_ns, focused_period_ns)
        self._base_ns = self._configured.base_ns  # as the limit has it now
        self._handle = handle
        self._flush_if_due = flush_if_due
        self._limit = limit
        self._app_threads_cpu_ns = 0  # used by captures on threads of the application
        self._last_counts = (0, 0, 0)  # of the ticker's counters, what is in there
        self._is_stopping = False
        self._guard = Guard("the sampling thread")
        self._stop_signal = WakeEvent()
        self._tick_thread = Worker("ticker", self._run_ticker)
        self._work_thread = Worker("sampler", self._run_worker)

    def start(self) -> None:
        """Start both threads.

        Raises:
            RuntimeError: the process can make no more threads.
        """
        self._work_thread.start()
        self._tick_thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop both; what is in the ring is handled. True if they ended within `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        self._is_stopping = True
        self._ticker.stop()
        self._stop_signal.set()
        ended = [
            thread.join(max(deadline_s - time.monotonic(), 0.0)) for thread in (self._work_thread, self._tick_thread)
        ]
        return all(ended)

    def counters(self) -> TickerCounters:
        """Ticks due, taken, missed and late since the start."""
        return self._ticker.counters()

    def _run_ticker(self) -> None:
        while not self._is_stopping:
            with self._guard.catching():
                self._ticker.run(self._periods.all_ns, self._periods.focused_ns)
            if not self._is_stopping:  # it failed: begin again with the next period, not at once
                self._stop_signal.wait(self._base_ns / 1e9)

    def _run_worker(self) -> None:
        while True:
            is_stopping = self._is_stopping  # read first: what was captured before the stop is still drained
            with self._guard.catching():
                for raw in self._ticker.drain(_DRAIN_TIMEOUT_NS):
                    with self._guard.catching():
                        self._handle(raw)
                    # What one of all threads costs contains those of the focus after it.
                    if not raw.is_focused and self._configured.is_all_threads_base:
                        with self._guard.catching():
                            self._apply_limit()
                with self._guard.catching():
                    self._flush_if_due()
                if not self._configured.is_all_threads_base:
                    with self._guard.catching():
                        self._apply_limit()
            if is_stopping:
                return

    def _apply_limit(self) -> None:
        limit, now_ns = self._limit, time.monotonic_ns()
        if limit is None or not limit.limiter.is_due(now_ns):
            return
        period_ns = limit.limiter.update_period(now_ns, self._sampling_cpu_ns() + limit.other_threads_cpu_ns())
        if period_ns != self._base_ns:
            self._base_ns = period_ns
            self._periods = self._configured.stretched(period_ns)
            self._ticker.set_periods(self._periods.all_ns, self._periods.focused_ns)
            limit.on_period_change(period_ns)

    def _sampling_cpu_ns(self) -> int:
        """CPU time that taking the snapshots and handling them has used, on our threads and on the application's."""
        counters = self._ticker.counters()
        counts = (counters.captured, counters.by_pending_call, counters.gil_held_ns_sum)
        captured, by_pending_call, held_ns = (new - old for new, old in zip(counts, self._last_counts, strict=True))
        self._last_counts = counts
        if captured > 0:
            self._app_threads_cpu_ns += min(held_ns // captured, _MAX_CAPTURE_COST_NS) * by_pending_call
        return self._tick_thread.cpu_ns() + self._work_thread.cpu_ns() + self._app_threads_cpu_ns
