"""Exports the transactions that have waited, in bounded time, with all that is known of them by then.

- The correlator thread exports what is due and waits for exporters that are full.
- A flush waits as long as its caller allows: for its batch processor, and for the correlator thread
  where a processor exports at once. What is not out by then stays.
- A shutdown has the correlator thread export everything, and waits while that makes progress: an
  exporter that hangs must hang there. A log line gives the number of spans lost.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from splunk_profiler.host_profilers.current_export import CurrentExport
from splunk_profiler.host_profilers.pending_spans import ExportSpan, PendingSpans, export_here
from splunk_profiler.host_profilers.transactions import PendingExport
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import WakeEvent, sleep_cooperatively, threads_are_greenlets

_NS_PER_S = 1_000_000_000
_BATCH_SIZE = 256  # transactions between two looks at the queues
_POLL_INTERVAL_S = 0.005
_SLOW_NS = 10_000_000
_MAX_DRAIN_NS = 5 * _NS_PER_S  # beyond the SDK's own time for a shutdown
_MAX_EXCESS_NS = 4 * _NS_PER_S  # less than a drain may take
_STALL_TIMEOUT_NS = 1 * _NS_PER_S  # with an exporter that takes nothing
_FORWARD_SLICE_NS = _NS_PER_S // 5  # before the correlator looks at messages again
_CORRELATOR_TIMEOUT_S = 1.0  # for the correlator to count messages; it takes longer only if it hangs
_MAX_DEPTH = 3  # of flushes within each other
_MAX_CORRELATOR_QUEUE = 1_024  # spans; beyond it they stay where they wait

# Wakes the correlator thread, to run a function after it has counted all messages; False if there is no such thread.
Submit = Callable[[Callable[[], None] | None], bool]


class SpanForwarder:
    """The export of pending spans, on the correlator thread and for flushes and shutdowns."""

    def __init__(self, pending: PendingSpans, submit: Submit, monotonic_ns: Callable[[], int]) -> None:
        self.current_export = CurrentExport()
        self._pending = pending
        self._submit = submit
        self._now_ns = monotonic_ns
        self._overdue_before_ns = 0  # transactions that ended before are overdue; 0 if none is
        self._is_forwarding = False

    def reset_after_fork(self) -> None:
        """Drop what belongs to the parent, in a forked child."""
        self.current_export = CurrentExport()
        self._overdue_before_ns = 0
        self._is_forwarding = False
        self._pending.reset_after_fork()

    def forward(self, ended_before_ns: int) -> bool:
        """Export what ended by then, on the correlator thread. Return False for lack of room or time."""
        overdue_ns = ended_before_ns - _STALL_TIMEOUT_NS
        deadline_ns = self._now_ns() + _FORWARD_SLICE_NS
        pending, export_span = self._pending, self.current_export.export
        self._is_forwarding = True
        try:
            for _ in pending.export_queued(export_span):
                if self._now_ns() > deadline_ns:
                    return False
            for _ in pending.export_due(overdue_ns, sys.maxsize, export_span):
                if self._now_ns() > deadline_ns:
                    self._overdue_before_ns = overdue_ns
                    return False
            self._overdue_before_ns = 0
            while (first_ns := pending.transactions.first_end_ns()) is not None and first_ns <= ended_before_ns:
                free_slots = min([_BATCH_SIZE, *(wrapped.free_slots for wrapped in pending.processors)])
                if free_slots <= 0:
                    return False
                for _ in pending.export_due(ended_before_ns, free_slots, export_span):
                    if self._now_ns() > deadline_ns:
                        return False
            return True
        finally:
            self._is_forwarding = False

    def forward_excess(self) -> None:
        """Export an overdue transaction on the calling thread, or two while a shutdown could not export all.

        A slow exporter thus slows down the threads that end spans, as it does without deferral. Else
        the queue of the correlator thread would grow without end. Does nothing within an export: an
        exporter that ends spans itself would be called one deeper for each.
        """
        pending = self._pending
        drain_ns = len(pending.transactions) * sum(wrapped.export_ns for wrapped in pending.processors)
        is_excess = drain_ns > _MAX_EXCESS_NS and not threads_are_greenlets()  # there, only queues get what waited
        if (is_excess or self._overdue_before_ns) and not pending.depth:
            ended_before_ns, count = (self._now_ns(), 2) if is_excess else (self._overdue_before_ns, 1)
            for _ in pending.export_due(ended_before_ns, count, export_here):
                pass

    def flush(self, flushed: WrappedProcessor, timeout_ms: int) -> bool:
        """Hand over all that has ended until now, before `flushed` exports it.

        A processor may flush at the end of each span, and so within a flush. The outermost flush
        then goes on. A signal handler may add one level. Return False after `timeout_ms` milliseconds.
        """
        depth = self._pending.depth
        if depth >= _MAX_DEPTH or self.current_export.is_this_thread_exporting:
            return True
        deadline_ns = self._now_ns() + timeout_ms * 1_000_000
        if self._pending.transactions.first_end_ns() is not None:
            self._wait_for_correlator(deadline_ns)  # until it has counted the messages sent before
        # A caller inside an exporter may hold its locks, and the correlator would wait for them.
        is_exporting = depth or any(wrapped.is_called_by_this_thread for wrapped in self._pending.processors)
        uses_correlator = not is_exporting and not threads_are_greenlets() and self._submit(None)
        if uses_correlator and len(self._pending.correlator_queue) > _MAX_CORRELATOR_QUEUE:
            return self._wait_for_correlator_queue(deadline_ns)
        flush_loop = FlushLoop(self._pending, self._now_ns, deadline_ns, _STALL_TIMEOUT_NS, flushed=flushed)
        is_complete = flush_loop.run(self._export_or_enqueue if uses_correlator else export_here)
        if uses_correlator and not self._wait_for_correlator_queue(deadline_ns):
            return False
        if self._is_forwarding:
            self._wait_for_correlator(deadline_ns)  # until it has handed over what it took meanwhile
        return is_complete

    def _export_or_enqueue(self, wrapped: WrappedProcessor, span: Any) -> None:
        """Export to a processor with a queue; leave the others, which may hang, to the correlator."""
        if wrapped.has_queue:
            wrapped.on_end(span)
        else:
            self._pending.correlator_queue.append(PendingExport(wrapped, span))

    def _wait_for_correlator_queue(self, deadline_ns: int) -> bool:
        """Wait until the correlator thread has exported its queue. Return False after the deadline."""
        queue, current = self._pending.correlator_queue, self.current_export.processor
        if not queue and (current is None or current.has_queue):
            return True
        done = WakeEvent()
        queue.append(done)
        while self._submit(None):
            left_s = (deadline_ns - self._now_ns()) / _NS_PER_S
            if done.wait(min(left_s, _CORRELATOR_TIMEOUT_S)):
                return True
            if left_s <= 0:
                with suppress(ValueError):  # the correlator has just taken it
                    queue.remove(done)
                return False
        for _ in self._pending.export_queued(export_here):  # there is no correlator thread now
            pass
        return True

    def _wait_for_correlator(self, deadline_ns: int) -> None:
        """Wait until the correlator thread ends its turn, or for the deadline or a second."""
        done = WakeEvent()
        wait_s = min(_CORRELATOR_TIMEOUT_S, (deadline_ns - self._now_ns()) / _NS_PER_S)
        is_waiting = not self.current_export.is_stuck and self._submit(done.set)
        if is_waiting and not done.wait(wait_s) and wait_s == _CORRELATOR_TIMEOUT_S:
            self.current_export.mark_stuck()

    def drain_spans(self, stall_timeout_s: float) -> None:
        """Export all that has ended until now, and drop what no exporter takes.

        Waits `stall_timeout_s` seconds without progress, at least 1; with progress it may take 5.
        """
        stall_timeout_ns = max(int(stall_timeout_s * _NS_PER_S), _STALL_TIMEOUT_NS)
        deadline_ns = self._now_ns() + _MAX_DRAIN_NS
        current_export = self.current_export
        done: list[bool] = []

        def drain() -> None:
            loop = FlushLoop(self._pending, self._now_ns, deadline_ns, stall_timeout_ns, pause=WakeEvent().wait)
            done.append(loop.run(current_export.export))

        was_stuck = current_export.is_stuck
        is_submitted = not was_stuck and not current_export.is_this_thread_exporting and self._submit(drain)
        if not is_submitted and not was_stuck:
            FlushLoop(self._pending, self._now_ns, deadline_ns, stall_timeout_ns).run(export_here)
            return
        if is_submitted:
            self._wait_while_draining(done, deadline_ns, stall_timeout_ns)
        if not done:
            stuck = current_export.processor
            excluded = [] if stuck is None else [stuck]
            lost_count = int(is_submitted) if excluded else 0  # the span of the call that hangs
            flush_loop = FlushLoop(
                self._pending, self._now_ns, deadline_ns, 0, excluded=excluded, lost_count=lost_count
            )
            flush_loop.run(export_here)
            current_export.mark_stuck()

    def _wait_while_draining(self, done: list[bool], deadline_ns: int, stall_timeout_ns: int) -> None:
        last_progress_ns = self._now_ns()
        pending_count = len(self._pending)
        while not done and self._now_ns() < min(deadline_ns, last_progress_ns + stall_timeout_ns):
            sleep_cooperatively(_POLL_INTERVAL_S)
            is_waiting = self.current_export.processor is None  # for room in a queue, with a limit of its own
            if is_waiting or len(self._pending) != pending_count:
                pending_count, last_progress_ns = len(self._pending), self._now_ns()


@dataclass(slots=True)
class FlushLoop:
    """One flush or shutdown: an export of all spans that ended before its `run`.

    Runs on the thread that flushes, or on the correlator thread for a shutdown.

    Attributes:
        deadline_ns: end of all waiting. An exporter that is slow for a span after it gets no more.
        stall_timeout_ns: longest wait for a full exporter that makes no progress. It then gets the
            rest all the same, and its SDK reports what it drops.
        flushed: processor that may export on this thread. Spans without a taker then stay; without
            `flushed` they are dropped.
        excluded: processors that get nothing: their last call hangs, or was slow after the deadline.
        lost_count: number of spans that are lost.
    """

    pending: PendingSpans
    now_ns: Callable[[], int]
    deadline_ns: int
    stall_timeout_ns: int
    pause: Callable[[float], object] = sleep_cooperatively
    flushed: WrappedProcessor | None = None
    excluded: list[WrappedProcessor] = field(default_factory=list)
    lost_count: int = 0
    _stalled: list[WrappedProcessor] = field(default_factory=list, init=False)  # are not waited for
    _last_progress_ns: int = field(default=0, init=False)

    def run(self, export_span: ExportSpan) -> bool:
        """Export through `export_span`. Return False if spans are left."""
        began_ns = self._last_progress_ns = self.now_ns()
        export = partial(self._export, export_span)
        if self.flushed is None:  # a flush waits for the correlator instead
            self._drain(self.pending.export_queued(export))
        if not self._drain(self.pending.export_in_flight(export)):
            return False
        while (first_ns := self.pending.transactions.first_end_ns()) is not None and first_ns <= began_ns:
            free_slots = self._wait_for_free_slots()
            if not free_slots:
                continue
            if not self._drain(self.pending.export_due(began_ns, free_slots, export)):
                return False
            self._last_progress_ns = self.now_ns()
        if self.lost_count:
            logger.warning(
                "%d spans that waited for the host profiler were not sent: their exporter takes too long",
                self.lost_count,
            )
        return True

    def _export(self, export_span: ExportSpan, wrapped: WrappedProcessor, span: Any) -> None:
        if wrapped in self.excluded:
            self.lost_count += 1
            return
        began_ns = self.now_ns()
        export_span(wrapped, span)
        done_ns = self.now_ns()
        if done_ns > self.deadline_ns and done_ns - began_ns > _SLOW_NS:
            self.excluded.append(wrapped)

    def _drain(self, steps: Iterator[None]) -> bool:
        """Take all steps. Return False if a flush has run out of time."""
        return not any(self.excluded and self.flushed is not None for _ in steps)

    def _wait_for_free_slots(self) -> int:
        """Return how many spans all exporters take now; 0 after a wait for one that is full."""
        free_slots = {item: item.free_slots for item in self.pending.processors if item not in self._stalled}
        full = [wrapped for wrapped, count in free_slots.items() if count <= 0]
        if not full:
            return min([_BATCH_SIZE, *free_slots.values()])
        if self.flushed in full:
            self.flushed.force_flush()
            self._stalled += [self.flushed] if self.flushed.free_slots <= 0 else []
        elif self.now_ns() < min(self.deadline_ns, self._last_progress_ns + self.stall_timeout_ns):
            for wrapped in full:
                wrapped.wake_exporter()
            self.pause(_POLL_INTERVAL_S)
        else:
            self._stalled += full
        return 0
