"""A flush or a shutdown: exports all that waits now, as far as the exporters take it.

Runs on the thread that flushes, or on the worker thread for a shutdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from splunk_profiler.host_profilers.pending_spans import ExportSpan, PendingSpans
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import sleep_cooperatively

BATCH_SIZE = 256  # transactions between two looks at the queues
POLL_INTERVAL_S = 0.005
_SLOW_NS = 10_000_000


@dataclass(slots=True)
class FlushLoop:
    """One export of all spans that ended before its `run`.

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

        def export(wrapped: WrappedProcessor, span: Any) -> None:
            self._export(export_span, wrapped, span)

        if self.flushed is None:  # a flush waits for the worker instead
            self._exhaust(self.pending.deliver_queued(export))
        if not self._exhaust(self.pending.deliver_in_flight(export)):
            return False
        while (first_ns := self.pending.transactions.first_end_ns()) is not None and first_ns <= began_ns:
            free_slots = self._make_room()
            if not free_slots:
                continue
            if not self._exhaust(self.pending.deliver_due(began_ns, free_slots, export)):
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

    def _exhaust(self, steps: Iterator[None]) -> bool:
        """Take all steps. Return False if a flush has run out of time."""
        return not any(self.excluded and self.flushed is not None for _ in steps)

    def _make_room(self) -> int:
        """Return how many spans all exporters take now; 0 after a wait for one that is full."""
        free_slots = {item: item.free_slots for item in self.pending.processors if item not in self._stalled}
        full = [wrapped for wrapped, count in free_slots.items() if count <= 0]
        if not full:
            return min([BATCH_SIZE, *free_slots.values()])
        if self.flushed in full:
            self.flushed.force_flush()
            self._stalled += [self.flushed] if self.flushed.free_slots <= 0 else []
        elif self.now_ns() < min(self.deadline_ns, self._last_progress_ns + self.stall_timeout_ns):
            for wrapped in full:
                wrapped.wake_exporter()
            self.pause(POLL_INTERVAL_S)
        else:
            self._stalled += full
        return 0
