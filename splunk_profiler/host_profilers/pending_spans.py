"""The spans that wait for a host profiler or for their exporters, and their export one by one.

`PendingSpans` is the one owner of these spans. All its methods may run on any thread and in signal
handlers, so none waits for a lock. It has no clock and never decides when a span is due.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from splunk_profiler.host_profilers.annotation import HostId, copy_with_stacks
from splunk_profiler.host_profilers.transactions import PendingExport, Transaction, TransactionBuffer
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import WakeEvent

ExportSpan = Callable[[WrappedProcessor, Any], None]


def export_here(wrapped: WrappedProcessor, span: Any) -> None:
    """Give `span` to its exporter on the calling thread."""
    wrapped.on_end(span)


class PendingSpans:
    """Spans that have ended and were not exported yet."""

    def __init__(self, buffer_size: int, host_id: HostId) -> None:
        self.host_id = host_id
        self.processors: list[WrappedProcessor] = []
        self.transactions = TransactionBuffer(buffer_size)
        self.correlator_queue: deque[PendingExport | WakeEvent] = deque()  # left by flushes; events to set in between
        self._buffer_size = buffer_size
        # Transactions stay here until their last span is out: a signal may end their export midway.
        self._in_flight: dict[int, Transaction] = {}
        self._depths: dict[int, int] = {}  # by thread ident
        self._guard = Guard("forwarding spans to the application's exporters")
        self._annotation_guard = Guard("adding stack-trace ids to spans")

    def __len__(self) -> int:
        return len(self.transactions) + len(self.correlator_queue)

    @property
    def depth(self) -> int:
        """Number of exports that the calling thread is in, one within another."""
        return self._depths.get(_thread.get_ident(), 0)

    def reset_after_fork(self) -> None:
        """Drop all spans in a forked child: the parent exports them."""
        self.transactions = TransactionBuffer(self._buffer_size)
        self.correlator_queue.clear()
        self._in_flight = {}
        self._depths = {}

    def annotate(self, span: Any, stacks: Mapping[bytes, int] | None = None) -> Any:
        """Return `span`, or a copy with its stacks and the host id.

        Never raises. A span that cannot be copied, such as a view of one, stays as it is.
        """
        try:
            return self.host_id.add_to_span(copy_with_stacks(span, stacks) if stacks else span)
        except Exception as error:
            self._annotation_guard.note(error)
            return span

    def export_transaction(self, transaction: Transaction, export_span: ExportSpan = export_here) -> None:
        """Export the spans of a closed transaction."""
        stacks = transaction.stacks
        original = annotated_span = None
        own = _thread.get_ident()
        depth = self._depths.get(own, 0)
        self._depths[own] = depth + 1
        self._in_flight[id(transaction)] = transaction
        try:
            for wrapped, span in transaction.take():
                try:
                    if span is not original:
                        original, annotated_span = span, self.annotate(span, stacks)
                    export_span(wrapped, annotated_span)
                except Exception as error:
                    self._guard.note(error)
        finally:
            if not transaction.exports:
                self._in_flight.pop(id(transaction), None)
            if depth:
                self._depths[own] = depth
            else:
                self._depths.pop(own, None)

    def export_all(self, now_ns: int) -> None:
        """Export everything on the calling thread, without waiting for exporters."""
        for _ in self.export_queued(export_here):
            pass
        for transaction in self.transactions.due(now_ns):
            self.export_transaction(transaction)

    def export_due(self, ended_before_ns: int, max_count: int, export_span: ExportSpan) -> Iterator[None]:
        """Export up to `max_count` transactions that ended by then, one a step."""
        for transaction in self.transactions.due(ended_before_ns, max_count):
            self.export_transaction(transaction, export_span)
            yield

    def export_in_flight(self, export_span: ExportSpan) -> Iterator[None]:
        """Finish the transactions whose export another thread has begun, one a step."""
        for transaction in list(self._in_flight.values()):
            self.export_transaction(transaction, export_span)
            yield

    def export_queued(self, export_span: ExportSpan) -> Iterator[None]:
        """Export the spans that flushes left to the correlator thread, one a step."""
        while self.correlator_queue:
            try:
                queued = self.correlator_queue.popleft()
            except IndexError:  # another thread took it
                return
            if isinstance(queued, WakeEvent):
                queued.set()
                continue
            try:
                export_span(*queued)
            except Exception as error:
                self._guard.note(error)
            yield
