"""The sampling threads: tick, capture, record.

Two daemon threads. The ticker's waits for absolute deadlines and takes raw snapshots into a bounded
ring. The sampler's drains the ring and does the rest, so that no deadline waits for Python work; it
also applies the overhead limit (`overhead`). Snapshots go to a callable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.raw import Periods, RawSnapshot, TickerCounters
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import WakeEvent, Worker

_DRAIN_TIMEOUT_NS = 500_000_000
_DRAIN_INTERVAL_NS = 50_000_000  # what a killed process loses is no older than that
_IDLE_DRAIN_INTERVAL_NS = 200_000_000  # each drain wakes two processes, and an idle one has hardly anything to lose
_IDLE_DIVISOR = 50  # it uses less than this part of a processor
_MAX_WAITING = 64  # snapshots; the ring has 256
_MAX_CAPTURE_COST_NS = 2_000_000  # longer ones were interrupted: this is wall time, not CPU time


class OverheadLimit(NamedTuple):
    """The limit of the profiler's CPU time.

    Attributes:
        other_threads_cpu_ns: returns the CPU time of other threads of the profiler.
        on_period_change: called with the new period, on the sampler thread.
        backlog_bytes: returns the size of what the exporter process has not taken yet.
    """

    limiter: OverheadLimiter
    other_threads_cpu_ns: Callable[[], int]
    on_period_change: Callable[[int], None]
    backlog_bytes: Callable[[], int] = lambda: 0


class DrainPace:
    """The time that snapshots may wait in the ring: longer while the service is idle."""

    def __init__(self, now_ns: int, service_cpu_ns: int) -> None:
        self._looked_ns, self._service_cpu_ns = now_ns, service_cpu_ns

    def interval_ns(self, now_ns: int, service_cpu_ns: int, period_ns: int) -> int:
        """Return the time to the next drain, by the CPU time of the service since the last call."""
        used_ns, elapsed_ns = service_cpu_ns - self._service_cpu_ns, now_ns - self._looked_ns
        self._looked_ns, self._service_cpu_ns = now_ns, service_cpu_ns
        if used_ns * _IDLE_DIVISOR >= elapsed_ns:
            return _DRAIN_INTERVAL_NS
        return max(min(_IDLE_DRAIN_INTERVAL_NS, period_ns * _MAX_WAITING), _DRAIN_INTERVAL_NS)


class Sampler:
    """The two threads that run a ticker and handle its snapshots; `stop` stops the ticker for good.

    The sampler thread calls `handle` with each snapshot, in order, and `on_drained` after some of
    them, at least once a second. It drains the ring twenty times a second at most, and five times while the
    service is idle: beside busy threads, it waits for the GIL each time.

    The limit stretches both `periods` in the same ratio, because the same threads pay for both. In a forked
    child the first deadline of all threads is at a random part of their period: of children that live for less, as
    workers for one job each do, some are sampled so, and at any place.
    """

    def __init__(
        self,
        ticker: Ticker,
        periods: Periods,
        handle: Callable[[RawSnapshot], None],
        limit: OverheadLimit | None = None,
        *,
        on_drained: Callable[[], None] = lambda: None,
        is_forked_child: bool = False,
    ) -> None:
        self._ticker = ticker
        # A command of its own starts no exporter before a period is over.
        self._phase_ns = int.from_bytes(os.urandom(8), "big") % max(periods.all_ns, 1) if is_forked_child else 0
        self._configured = self._periods = periods
        self._base_ns = periods.base_ns  # as the limit stretches it
        self._handle = handle
        self._on_drained = on_drained
        self._limit = limit
        self._app_threads_cpu_ns = 0  # used by captures on threads of the application
        self._last_counters = TickerCounters()  # counters at the last addition to it
        self._is_stopping = False
        self._guard = Guard("the sampling thread")
        self._stop_signal = WakeEvent()
        self._tick_thread = Worker("ticker", self._run_ticker)
        self._work_thread = Worker("sampler", self._run_sampler)

    def start(self) -> None:
        """Start both threads; `RuntimeError` if the process can make no more."""
        self._work_thread.start()
        self._tick_thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop both threads and handle the rest of the ring; return True if they ended within `timeout_s`."""
        deadline_s = clocks.monotonic() + timeout_s
        self._is_stopping = True
        self._ticker.stop()
        self._stop_signal.set()
        ended = [thread.join(deadline_s - clocks.monotonic()) for thread in (self._work_thread, self._tick_thread)]
        return all(ended)

    def _run_ticker(self) -> None:
        while not self._is_stopping:
            with self._guard.catching():
                self._ticker.run(self._periods.all_ns, self._periods.focused_ns, self._phase_ns)
            if not self._is_stopping:  # after an error: try again one period later
                self._stop_signal.wait(self._base_ns / 1e9)

    def _run_sampler(self) -> None:
        pause_ns = 0
        pace = DrainPace(clocks.monotonic_ns(), self._service_cpu_ns())
        while True:
            is_stopping = self._is_stopping  # read first: snapshots from before the stop are drained
            with self._guard.catching():
                for raw in self._ticker.drain(_DRAIN_TIMEOUT_NS, pause_ns):
                    with self._guard.catching():
                        self._handle(raw)
                    # The cost of a full capture includes the focused ones after it.
                    if not raw.is_focused and self._configured.is_all_threads_base:
                        with self._guard.catching():
                            self._apply_limit()
                with self._guard.catching():
                    self._on_drained()
                if not self._configured.is_all_threads_base:
                    with self._guard.catching():
                        self._apply_limit()
            if is_stopping:
                return
            periods_ns = filter(None, (self._periods.all_ns, self._periods.focused_ns))
            pause_ns = pace.interval_ns(clocks.monotonic_ns(), self._service_cpu_ns(), min(periods_ns))

    def _service_cpu_ns(self) -> int:
        return time.process_time_ns() - self._tick_thread.cpu_ns() - self._work_thread.cpu_ns()

    def _apply_limit(self) -> None:
        limit, now_ns = self._limit, clocks.monotonic_ns()
        if limit is None or not limit.limiter.is_due(now_ns):
            return
        cpu_ns = self._sampling_cpu_ns() + limit.other_threads_cpu_ns()
        period_ns = limit.limiter.update_period(now_ns, cpu_ns, limit.backlog_bytes())
        if period_ns != self._base_ns:
            self._base_ns = period_ns
            self._periods = self._configured.stretched(period_ns)
            self._ticker.set_periods(self._periods.all_ns, self._periods.focused_ns)
            limit.on_period_change(period_ns)

    def _sampling_cpu_ns(self) -> int:
        """Return the CPU time of capturing and handling, on our threads and on the application's."""
        last, now = self._last_counters, self._ticker.counters()
        self._last_counters = now
        self._app_threads_cpu_ns += now.event_ns_sum - last.event_ns_sum
        self._app_threads_cpu_ns += now.look_ns_sum - last.look_ns_sum  # some of it on our own thread
        captured = now.captured - last.captured
        if captured > 0:
            cost_ns = min((now.gil_held_ns_sum - last.gil_held_ns_sum) // captured, _MAX_CAPTURE_COST_NS)
            self._app_threads_cpu_ns += cost_ns * (now.by_pending_call - last.by_pending_call)
        return self._tick_thread.cpu_ns() + self._work_thread.cpu_ns() + self._app_threads_cpu_ns
