"""Exports the transactions that have waited, in bounded time, with all that is known of them by then.

- The worker thread exports what is due and waits for exporters that are full.
- A flush waits as long as its caller allows: for its batch processor, and for the worker thread
  where a processor exports at once. What is not out by then stays.
- A shutdown has the worker thread export everything, and waits while that makes progress: an
  exporter that hangs must hang there. A log line gives the number of spans lost.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from splunk_profiler.host_profilers.flush_loop import BATCH_SIZE, POLL_INTERVAL_S, FlushLoop
from splunk_profiler.host_profilers.pending_spans import PendingSpans, export_here
from splunk_profiler.host_profilers.transactions import Delivery
from splunk_profiler.host_profilers.worker_export import WorkerExport
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.threads import WakeEvent, sleep_cooperatively, threads_are_greenlets

_NS_PER_S = 1_000_000_000
_MAX_DRAIN_NS = 5 * _NS_PER_S  # beyond the SDK's own time for a shutdown
_STALL_TIMEOUT_NS = 1 * _NS_PER_S  # with an exporter that takes nothing
_FORWARD_SLICE_NS = _NS_PER_S // 5  # before the worker looks at messages again
_WORKER_TIMEOUT_S = 1.0  # for the worker to count messages; it takes longer only if it hangs
_MAX_DEPTH = 3  # of flushes within each other
_MAX_WORKER_QUEUE = 1_024  # spans; beyond it they stay where they wait

# Wakes the worker thread, to run a function after it has counted all messages; False if there is no such thread.
Submit = Callable[[Callable[[], None] | None], bool]


class SpanForwarder:
    """The export of pending spans, on the worker thread and for flushes and shutdowns."""

    def __init__(
        self, pending: PendingSpans, submit: Submit, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.worker_export = WorkerExport()
        self._pending = pending
        self._submit = submit
        self._now_ns = monotonic_ns
        self._overdue_before_ns = 0  # transactions that ended before are overdue; 0 if none is
        self._is_forwarding = False

    def reset_after_fork(self) -> None:
        """Drop what belongs to the parent, in a forked child."""
        self.worker_export = WorkerExport()
        self._overdue_before_ns = 0
        self._is_forwarding = False
        self._pending.reset_after_fork()

    def forward(self, ended_before_ns: int) -> bool:
        """Export what ended by then, on the worker thread. Return False for lack of room or time."""
        overdue_ns = ended_before_ns - _STALL_TIMEOUT_NS
        deadline_ns = self._now_ns() + _FORWARD_SLICE_NS
        pending, export_span = self._pending, self.worker_export.export
        self._is_forwarding = True
        try:
            for _ in pending.deliver_queued(export_span):
                if self._now_ns() > deadline_ns:
                    return False
            for _ in pending.deliver_due(overdue_ns, sys.maxsize, export_span):
                if self._now_ns() > deadline_ns:
                    self._overdue_before_ns = overdue_ns
                    return False
            self._overdue_before_ns = 0
            while (first_ns := pending.transactions.first_end_ns()) is not None and first_ns <= ended_before_ns:
                free_slots = min([BATCH_SIZE, *(wrapped.free_slots for wrapped in pending.processors)])
                if free_slots <= 0:
                    return False
                for _ in pending.deliver_due(ended_before_ns, free_slots, export_span):
                    if self._now_ns() > deadline_ns:
                        return False
            return True
        finally:
            self._is_forwarding = False

    def forward_overdue(self) -> None:
        """Export one overdue transaction on the calling thread.

        A slow exporter thus slows down the threads that end spans, as it does without deferral. Else
        the queue of the worker thread would grow without end.
        """
        if self._overdue_before_ns:
            for _ in self._pending.deliver_due(self._overdue_before_ns, 1, export_here):
                pass

    def flush(self, flushed: WrappedProcessor, timeout_ms: int) -> bool:
        """Hand over all that has ended until now, before `flushed` exports it.

        A processor may flush at the end of each span, and so within a flush. The outermost flush
        then goes on. A signal handler may add one level. Return False after `timeout_ms` milliseconds.
        """
        depth = self._pending.depth
        if depth >= _MAX_DEPTH or self.worker_export.is_inside:
            return True
        deadline_ns = self._now_ns() + timeout_ms * 1_000_000
        if self._pending.transactions.first_end_ns() is not None:
            self._wait_for_worker(deadline_ns)  # until it has counted the messages sent before
        # A caller inside an exporter may hold its locks, and the worker would wait for them.
        is_exporting = depth or any(wrapped.is_called_by_this_thread for wrapped in self._pending.processors)
        uses_worker = not is_exporting and not threads_are_greenlets() and self._submit(None)
        if uses_worker and len(self._pending.worker_queue) > _MAX_WORKER_QUEUE:
            return self._wait_for_worker_queue(deadline_ns)
        flush_loop = FlushLoop(self._pending, self._now_ns, deadline_ns, _STALL_TIMEOUT_NS, flushed=flushed)
        is_complete = flush_loop.run(self._export_or_enqueue if uses_worker else export_here)
        if uses_worker and not self._wait_for_worker_queue(deadline_ns):
            return False
        if self._is_forwarding:
            self._wait_for_worker(deadline_ns)  # until it has handed over what it took meanwhile
        return is_complete

    def _export_or_enqueue(self, wrapped: WrappedProcessor, span: Any) -> None:
        """Export to a processor with a queue; leave the others, which may hang, to the worker."""
        if wrapped.has_queue:
            wrapped.on_end(span)
        else:
            self._pending.worker_queue.append(Delivery(wrapped, span))

    def _wait_for_worker_queue(self, deadline_ns: int) -> bool:
        """Wait until the worker thread has exported its queue. Return False after the deadline."""
        queue, current = self._pending.worker_queue, self.worker_export.processor
        if not queue and (current is None or current.has_queue):
            return True
        done = WakeEvent()
        queue.append(done)
        while self._submit(None):
            left_s = (deadline_ns - self._now_ns()) / _NS_PER_S
            if done.wait(min(left_s, _WORKER_TIMEOUT_S)):
                return True
            if left_s <= 0:
                with suppress(ValueError):  # the worker has just taken it
                    queue.remove(done)
                return False
        for _ in self._pending.deliver_queued(export_here):  # there is no worker thread now
            pass
        return True

    def _wait_for_worker(self, deadline_ns: int) -> None:
        """Wait until the worker thread ends its turn, or for the deadline or a second."""
        done = WakeEvent()
        wait_s = min(_WORKER_TIMEOUT_S, (deadline_ns - self._now_ns()) / _NS_PER_S)
        is_waiting = not self.worker_export.is_stuck and self._submit(done.set)
        if is_waiting and not done.wait(wait_s) and wait_s == _WORKER_TIMEOUT_S:
            self.worker_export.mark_stuck()

    def drain_spans(self, stall_timeout_s: float) -> None:
        """Export all that has ended until now, and drop what no exporter takes.

        Args:
            stall_timeout_s: seconds without progress, at least 1. With progress it may take 5.
        """
        stall_timeout_ns = max(int(stall_timeout_s * _NS_PER_S), _STALL_TIMEOUT_NS)
        deadline_ns = self._now_ns() + _MAX_DRAIN_NS
        worker_export = self.worker_export
        done: list[bool] = []

        def drain() -> None:
            loop = FlushLoop(self._pending, self._now_ns, deadline_ns, stall_timeout_ns // 2, pause=WakeEvent().wait)
            done.append(loop.run(worker_export.export))

        was_stuck = worker_export.is_stuck
        is_submitted = not was_stuck and not worker_export.is_inside and self._submit(drain)
        if not is_submitted and not was_stuck:
            FlushLoop(self._pending, self._now_ns, deadline_ns, stall_timeout_ns // 2).run(export_here)
            return
        if is_submitted:
            self._wait_while_draining(done, deadline_ns, stall_timeout_ns)
        if not done:
            stuck = worker_export.processor
            excluded = [] if stuck is None else [stuck]
            lost_count = int(is_submitted) if excluded else 0  # the span of the call that hangs
            now_ns = self._now_ns()
            flush_loop = FlushLoop(self._pending, self._now_ns, now_ns, 0, excluded=excluded, lost_count=lost_count)
            flush_loop.run(export_here)
            worker_export.mark_stuck()

    def _wait_while_draining(self, done: list[bool], deadline_ns: int, stall_timeout_ns: int) -> None:
        last_progress_ns = self._now_ns()
        pending_count = len(self._pending)
        while not done and self._now_ns() < min(deadline_ns, last_progress_ns + stall_timeout_ns):
            sleep_cooperatively(POLL_INTERVAL_S)
            if len(self._pending) != pending_count:
                pending_count, last_progress_ns = len(self._pending), self._now_ns()
