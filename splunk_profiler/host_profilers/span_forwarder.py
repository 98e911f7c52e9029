"""Hands the transactions that have waited to the exporters, with what is known of them by then; in bounded time.

Three occasions, with three rights to wait. Our own thread forwards what is due, and waits for exporters that are full.
An application that flushes waits for its batch processor as it always does, and for our thread where a processor
exports at once: no longer than it said, and what is not out by then stays. One that shuts down or ends waits for our
thread to hand everything over, as long as that gets on: an exporter that hangs, hangs there. What is lost then is said.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import _thread
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from splunk_profiler.host_profilers.annotation import HostId, copy_with_stacks
from splunk_profiler.host_profilers.flush_loop import BATCH_SIZE, POLL_INTERVAL_S, ExportSpan, FlushLoop
from splunk_profiler.host_profilers.transactions import Transaction, Transactions
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import WakeEvent, real_lock, sleep_cooperatively, threads_are_greenlets

_NS_PER_S = 1_000_000_000
_MAX_DRAIN_NS = 5 * _NS_PER_S  # that a shutdown may take longer than the SDK's own
_STALL_TIMEOUT_NS = 1 * _NS_PER_S  # with an exporter that takes nothing
_FORWARD_SLICE_NS = _NS_PER_S // 5  # that our thread forwards before it looks at messages again
_WORKER_TIMEOUT_S = 1.0  # for our thread to count what has come; longer only if it hangs
_MAX_DEPTH = 3  # of flushes within each other
_MAX_WORKER_QUEUE = 1_024  # spans that our thread has not got to; more of them stay where they wait

Submit = Callable[[Callable[[], None]], bool]


class ForwardingError(Exception):
    """An exporter wanted to end the thread that it was called on, which is ours."""


class SpanForwarder:
    """What waits, on its way to its exporters.

    Args:
        transactions: the bookkeeping.
        host_id: what is known of the host.
        submit: has something done on our own thread, once what has come until now is counted. False if it cannot.
        monotonic_ns: the clock.

    Attributes:
        wrapped_processors: the exporters.
    """

    def __init__(
        self,
        transactions: Transactions,
        host_id: HostId,
        submit: Submit,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.wrapped_processors: list[WrappedProcessor] = []
        self._transactions = transactions
        self._host_id = host_id
        self._submit = submit
        self._now_ns = monotonic_ns
        self._in_flight: dict[int, Transaction] = {}  # a signal may have interrupted whoever forwards them, for good
        self._worker_queue: deque[tuple[WrappedProcessor, Any] | WakeEvent] = (
            deque()
        )  # by who flushes, to our own thread
        self._lock_during_exports = real_lock()  # our own thread is in somebody else's code, which may have locks
        self._forking_ident = 0  # ident of the thread that holds `_lock_during_exports` while it forks
        self._fork_timeout_export_count = -1  # `_export_count`, when somebody had waited in vain to fork
        self._worker_ident = 0  # ident of our own thread
        self._overdue_before_ns = 0  # what ended before then should have gone long ago; 0 if there is nothing
        self._is_forwarding = False  # it is forwarding
        self._current_processor: WrappedProcessor | None = (
            None  # has been handed a span on our own thread, and has it still
        )
        self._export_count = 0  # how many were before
        self._stuck_export_count = -1  # `_export_count`, when somebody had waited for that one in vain
        self._export_depth: dict[int, int] = {}  # thread → how many spans it is handing over, one within another
        self._guard = Guard("handing spans to the application's exporters")
        self._annotation_guard = Guard("writing on spans what host profilers say")

    def reset_after_fork(self, transactions: Transactions) -> None:
        """In a forked child: what waits is the parent's to forward."""
        self._transactions = transactions
        self._in_flight = {}
        self._worker_queue.clear()
        self._overdue_before_ns = 0
        self._is_forwarding = False
        self._lock_during_exports = real_lock()  # our thread, which is not here, may have held it
        self._forking_ident = 0
        self._current_processor = None
        self._export_depth = {}

    def deliver(self, transaction: Transaction) -> None:
        """Forward the spans of a transaction that is closed. On any thread."""
        self._deliver(transaction, _export_span)

    def deliver_all(self) -> None:
        """Forward everything, waiting for nobody. On any thread."""
        for _ in self.export_worker_queue(_export_span):
            pass
        for transaction in self._transactions.due(self._now_ns()):
            self.deliver(transaction)

    # ---- on our own thread ----

    def forward(self, ended_before_ns: int) -> bool:
        """Forward what ended before then. False if there is more of it, for which there is no room or no time now."""
        overdue_ns = ended_before_ns - _STALL_TIMEOUT_NS
        deadline_ns = self._now_ns() + _FORWARD_SLICE_NS
        self._worker_ident = _thread.get_ident()
        self._is_forwarding = True
        try:
            for _ in self.export_worker_queue(self._export_on_worker):
                if self._now_ns() > deadline_ns:
                    return False
            for _ in self.deliver_due(overdue_ns, sys.maxsize, self._export_on_worker):
                if self._now_ns() > deadline_ns:
                    self._overdue_before_ns = overdue_ns
                    return False
            self._overdue_before_ns = 0
            while True:
                first_ns = self._transactions.first_end_ns()
                if first_ns is None or first_ns > ended_before_ns:
                    return True
                free_slots = min((wrapped.free_slots for wrapped in self.wrapped_processors), default=BATCH_SIZE)
                if free_slots <= 0:
                    return False
                for _ in self.deliver_due(ended_before_ns, min(free_slots, BATCH_SIZE), self._export_on_worker):
                    if self._now_ns() > deadline_ns:
                        return False
        finally:
            self._is_forwarding = False

    def _export_on_worker(self, wrapped: WrappedProcessor, span: Any) -> None:
        with self._lock_during_exports:
            self._current_processor = wrapped
            try:
                wrapped.on_end(span)
            except Exception:
                raise
            except BaseException as error:  # is to end a thread or a task of the application; this is neither
                raise ForwardingError(f"an exporter raised {type(error).__name__}") from error
            finally:
                self._current_processor = None
                self._export_count += 1

    # ---- on the application's threads ----

    def forward_overdue(self) -> None:
        """Hand on one transaction where our thread cannot keep up with those that end.

        Exporters that export at once slow down whoever ends a span, if they are slow. On our thread they would not, and
        more and more would wait, for longer and longer.
        """
        if self._overdue_before_ns:
            for _ in self.deliver_due(self._overdue_before_ns, 1, _export_span):
                pass

    def hold(self, timeout_s: float) -> None:
        """Before a fork: have our thread out of all exporters, whose locks would stay locked in the child for ever.

        Waits at most `timeout_s` seconds for an exporter, and not a second time for the same span.
        """
        if self._is_inside_own_export or (
            self._current_processor is not None and self._export_count == self._fork_timeout_export_count
        ):
            return
        if self._lock_during_exports.acquire(timeout=timeout_s):
            self._forking_ident = _thread.get_ident()
        else:
            self._fork_timeout_export_count = self._export_count

    def release(self) -> None:
        """After it, in the parent."""
        if self._forking_ident == _thread.get_ident():
            self._forking_ident = 0
            self._lock_during_exports.release()

    def flush(self, flushed: WrappedProcessor, timeout_ms: int) -> bool:
        """Forward all that has ended until now; `flushed` is about to export it. False if it takes longer than that.

        Processors may flush at the end of each transaction, and so for each one that is handed to them here: then it is
        for the outermost flush to go on. A signal handler may be one level further in.
        """
        depth = self._export_depth.get(_thread.get_ident(), 0)
        if depth >= _MAX_DEPTH or self._is_inside_own_export:
            return True
        deadline_ns = self._now_ns() + timeout_ms * 1_000_000
        if self._transactions.first_end_ns() is not None:
            self._wait_for_worker(deadline_ns)  # what was sent before is counted
        # Who is inside of an exporter may have its locks, and our thread would wait for them.
        is_exporting = depth or any(wrapped.is_called_by_this_thread for wrapped in self.wrapped_processors)
        uses_worker = not is_exporting and not threads_are_greenlets() and self._submit(_do_nothing)
        if uses_worker and len(self._worker_queue) > _MAX_WORKER_QUEUE:
            return self._wait_for_worker_queue(deadline_ns)
        flush_loop = FlushLoop(self._now_ns, deadline_ns, _STALL_TIMEOUT_NS, sleep_cooperatively)
        is_complete = flush_loop.run(self, self._export_or_enqueue if uses_worker else _export_span, flushed=flushed)
        if uses_worker and not self._wait_for_worker_queue(deadline_ns):
            return False
        if self._is_forwarding:
            self._wait_for_worker(deadline_ns)  # what our thread has taken out meanwhile has got there
        return is_complete

    def _export_or_enqueue(self, wrapped: WrappedProcessor, span: Any) -> None:
        """What only puts the span into a queue is done here; what may take for ever is for our own thread."""
        if wrapped.has_queue:
            wrapped.on_end(span)
        else:
            self._worker_queue.append((wrapped, span))

    def _wait_for_worker_queue(self, deadline_ns: int) -> bool:
        """Until our own thread has handed it over, and what it had in hand before; False if it takes longer."""
        if not self._worker_queue and (self._current_processor is None or self._current_processor.has_queue):
            return True
        done = WakeEvent()
        self._worker_queue.append(done)
        while self._submit(_do_nothing):
            left_s = (deadline_ns - self._now_ns()) / _NS_PER_S
            if done.wait(min(left_s, _WORKER_TIMEOUT_S)):
                return True
            if left_s <= 0:
                with suppress(ValueError):  # it has just been reached
                    self._worker_queue.remove(done)
                return False
        for _ in self.export_worker_queue(_export_span):  # there is no such thread now
            pass
        return True

    def _wait_for_worker(self, deadline_ns: int) -> None:
        """Wait until our thread is done with what it is at; at most until then."""
        done = WakeEvent()
        wait_s = min(_WORKER_TIMEOUT_S, (deadline_ns - self._now_ns()) / _NS_PER_S)
        if not self._is_stuck and self._submit(done.set) and not done.wait(wait_s) and wait_s == _WORKER_TIMEOUT_S:
            self._mark_stuck()

    def drain_spans(self, stall_timeout_s: float) -> None:
        """Have all that has ended until now forwarded, and drop what nobody takes.

        Args:
            stall_timeout_s: how long it may take without getting on; at least 1 second. As long as it does, it gets 5.
        """
        stall_timeout_ns = max(int(stall_timeout_s * _NS_PER_S), _STALL_TIMEOUT_NS)
        began_ns = last_progress_ns = self._now_ns()
        deadline_ns = began_ns + _MAX_DRAIN_NS
        is_drained = False

        def drain_spans() -> None:
            nonlocal is_drained
            self._worker_ident = _thread.get_ident()
            flush_loop = FlushLoop(
                self._now_ns, deadline_ns, stall_timeout_ns // 2, lambda seconds: WakeEvent().wait(seconds)
            )
            flush_loop.run(self, self._export_on_worker)
            is_drained = True

        was_stuck = self._is_stuck
        is_submitted = not was_stuck and not self._is_inside_own_export and self._submit(drain_spans)
        if not is_submitted and not was_stuck:
            FlushLoop(self._now_ns, deadline_ns, stall_timeout_ns // 2, sleep_cooperatively).run(self, _export_span)
            return
        pending_count = self._pending_count
        while (
            is_submitted and not is_drained and self._now_ns() < min(deadline_ns, last_progress_ns + stall_timeout_ns)
        ):
            sleep_cooperatively(POLL_INTERVAL_S)
            if self._pending_count != pending_count:
                pending_count, last_progress_ns = self._pending_count, self._now_ns()
        if not is_drained:
            stuck_processor = self._current_processor
            flush_loop = FlushLoop(self._now_ns, self._now_ns(), 0, sleep_cooperatively)
            flush_loop.run(
                self,
                _export_span,
                stuck_processor=stuck_processor,
                lost_count=int(stuck_processor is not None and is_submitted),
            )
            self._mark_stuck()

    @property
    def _pending_count(self) -> int:
        return len(self._transactions) + len(self._worker_queue)

    @property
    def _is_stuck(self) -> bool:
        """Whether our thread is still with the exporter that somebody has waited for in vain."""
        return self._current_processor is not None and self._export_count == self._stuck_export_count

    @property
    def _is_inside_own_export(self) -> bool:
        """Whether this is our own thread, in what it has handed a span to: it cannot wait for itself."""
        return self._current_processor is not None and self._worker_ident == _thread.get_ident()

    def _mark_stuck(self) -> None:
        if self._current_processor is not None:
            self._stuck_export_count = self._export_count

    # ---- on any ----

    def annotate(self, span: Any, stacks: Mapping[bytes, int] | None = None) -> Any:
        """`span`, or a copy with what is known; never raises: what cannot be copied, as views are, stays."""
        try:
            return self._host_id.add_to_span(copy_with_stacks(span, stacks) if stacks else span)
        except Exception as error:
            self._annotation_guard.note(error)
            return span

    @property
    def has_queued_spans(self) -> bool:
        """Whether flushes have left spans to our own thread."""
        return bool(self._worker_queue)

    def first_end_ns(self) -> int | None:
        """See `Transactions.first_end_ns`."""
        return self._transactions.first_end_ns()

    def export_worker_queue(self, export_span: ExportSpan) -> Iterator[None]:
        """Forward what flushes have left to our own thread, one by one."""
        while self._worker_queue:
            try:
                queued = self._worker_queue.popleft()
            except IndexError:  # another thread was quicker
                return
            if isinstance(queued, WakeEvent):
                queued.set()
                continue
            try:
                export_span(*queued)
            except Exception as error:
                self._guard.note(error)
            yield

    def deliver_in_flight(self, export_span: ExportSpan, *, is_flushing: bool) -> Iterator[None]:
        """Forward what others have begun to forward and are not done with, one by one; who flushes only waits for it
        where it is for our own thread."""
        if not is_flushing:
            yield from self.export_worker_queue(export_span)
        for transaction in list(self._in_flight.values()):
            self._deliver(transaction, export_span)
            yield

    def deliver_due(self, ended_before_ns: int, max_count: int, export_span: ExportSpan) -> Iterator[None]:
        """Forward some of those that ended until then, one by one."""
        for transaction in self._transactions.due(ended_before_ns, max_count):
            self._deliver(transaction, export_span)
            yield

    def _deliver(self, transaction: Transaction, export_span: ExportSpan) -> None:
        stacks = transaction.stacks
        original = annotated_span = None
        own = _thread.get_ident()
        depth = self._export_depth.get(own, 0)
        self._export_depth[own] = depth + 1
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
            if not transaction.deliveries:
                self._in_flight.pop(id(transaction), None)
            if depth:
                self._export_depth[own] = depth
            else:
                self._export_depth.pop(own, None)


def _export_span(wrapped: WrappedProcessor, span: Any) -> None:
    wrapped.on_end(span)


def _do_nothing() -> None:
    pass
