"""Has the transactions of exporting span processors wait until the host profiler has said what it saw in them.

`SpanDeferral` stands in the way of the processors that export: their `on_start`, `on_end`, `force_flush` and `shutdown`
are replaced on the instance. So they keep their place, their type and their identity, and an application that has one
in its hands and flushes it gets what is deferred as well. Called on the application's threads, which must not wait.
Knows no messages and no settings; must not load anything of the SDK.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from splunk_profiler.host_profilers.annotation import HostId, is_transaction, transaction_key
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder
from splunk_profiler.host_profilers.transactions import Transactions
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor, iter_processors
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import real_lock

_DEFAULT_FLUSH_TIMEOUT_MS = 30_000  # the SDK's default
_STALL_TIMEOUT_S = 1.0


class SpanDeferral:
    """The exporting processors of the process, and what they have not been given yet.

    Args:
        transactions: the bookkeeping.
        forwarder: hands over what has waited.
        host_id: what is known of the host.
        make_patch: makes a decoration of an object.
        on_defer: called when a transaction begins to wait; must be short.
        monotonic_ns: the clock.

    Attributes:
        is_active: whether transactions are deferred; else spans go straight through.
    """

    def __init__(
        self,
        transactions: Transactions,
        forwarder: SpanForwarder,
        host_id: HostId,
        make_patch: Callable[[Any], MethodPatch],
        on_defer: Callable[[], None],
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.is_active = False
        self._transactions = transactions
        self._forwarder = forwarder
        self._host_id = host_id
        self._make_patch = make_patch
        self._on_defer = on_defer
        self._now_ns = monotonic_ns
        self._lock = real_lock()  # of the changes to what follows
        self._pending_processors: deque[Any] = deque()
        self._patched_sets: list[Any] = []  # sets of processors
        self._patches: list[MethodPatch] = []
        self._guard = Guard("having spans wait for host profilers")
        self._has_warned_of_full = False

    def attach(self, processors: Any) -> None:
        """Stand in the way of what exports among `processors`, now and when more are added. Never waits."""
        self._pending_processors.append(processors)
        while self._pending_processors and self._lock.acquire(
            blocking=False
        ):  # whoever holds it does what came meanwhile
            try:
                with self._guard.catching():
                    if self._pending_processors:
                        self._wrap_processors(self._pending_processors.popleft())
            finally:
                self._lock.release()

    def _wrap_processors(self, processors: Any) -> None:
        for processor in iter_processors(processors):
            if hasattr(processor, "add_span_processor"):
                if not any(known is processor for known in self._patched_sets):
                    self._patch_set(processor)
            elif not any(known.processor is processor for known in self._forwarder.wrapped_processors):
                self._wrap(WrappedProcessor(processor))

    def _patch_set(self, processors: Any) -> None:
        add, shut_down = processors.add_span_processor, processors.shutdown
        if not hasattr(processors, "__dict__"):
            logger.debug("what is added to %s later cannot be made to wait", type(processors).__name__)
            return

        def add_span_processor(span_processor: Any) -> None:
            add(span_processor)
            with self._guard.catching():
                if self._patched_sets:
                    self.attach(span_processor)

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            result = shut_down(*args, **kwargs)
            with self._guard.catching():
                self._patched_sets = [known for known in self._patched_sets if known is not processors]
                self._remove_patch(patch)
            return result

        patch = self._install_patch(processors, {"add_span_processor": add_span_processor, "shutdown": shutdown})
        self._patched_sets.append(processors)

    def detach(self, stall_timeout_s: float) -> None:
        """Forward all that waits, as `SpanForwarder.drain_spans` does, and stand in nobody's way any more."""
        self.is_active = False
        self._forwarder.drain_spans(stall_timeout_s)
        self._forwarder.wrapped_processors, self._patched_sets = [], []
        for patch in [*self._patches]:
            self._remove_patch(patch)
        self._forwarder.deliver_all()  # what was ending when `is_active` was switched off

    def reset_after_fork(self, transactions: Transactions) -> None:
        """In a forked child: what waits is the parent's to forward, and no profiler has been heard of here."""
        self.is_active = False
        self._lock = real_lock()  # a thread that is not here may have held it
        self._pending_processors.clear()
        self._transactions = transactions
        self._forwarder.reset_after_fork(transactions)

    def _defer(self, wrapped: WrappedProcessor, span: Any, context: Any) -> None:
        transaction = self._transactions.defer(transaction_key(context), wrapped, span, self._now_ns())
        if transaction.is_closed:
            self._warn_if_full()
            self._forwarder.deliver(transaction)
            return
        self._on_defer()
        self._forwarder.forward_overdue()
        if wrapped.is_shut_down or not self.is_active:  # since this span began to end: whoever did that has not seen it
            self._forwarder.deliver_all()

    def _warn_if_full(self) -> None:
        if self._transactions.refused and not self._has_warned_of_full:
            self._has_warned_of_full = True
            logger.warning(
                "more transactions end than can wait for the host profiler: they are sent at once, and its stack-trace"
                " ids on them may be incomplete; ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE says how many"
                " can wait"
            )

    def _wrap(self, wrapped: WrappedProcessor) -> None:
        if not hasattr(wrapped.processor, "__dict__"):
            logger.debug("%s cannot be made to wait for a host profiler", type(wrapped.processor).__name__)
            return

        def on_start(span: Any, parent_context: Any = None) -> None:
            if self.is_active:
                try:
                    context = span.context
                    if is_transaction(span, context):
                        self._transactions.begin(transaction_key(context))
                except Exception as error:
                    self._guard.note(error)
            wrapped.on_start(span, parent_context=parent_context)

        def on_end(span: Any) -> None:
            if self.is_active and not wrapped.is_shut_down:
                try:
                    context = span.context
                    if context is not None and is_transaction(span, context) and wrapped.accepts_any_thread:
                        self._defer(wrapped, span, context)
                        return
                except Exception as error:
                    self._guard.note(error)
            wrapped.pass_through(self._forwarder.annotate(span) if self._host_id.value else span)

        def force_flush(*args: Any, **kwargs: Any) -> Any:
            timeout_ms = kwargs.get("timeout_millis", args[0] if args else None)
            is_complete = True
            with self._guard.catching():
                is_complete = self._forwarder.flush(
                    wrapped, int(_DEFAULT_FLUSH_TIMEOUT_MS if timeout_ms is None else timeout_ms)
                )
            return wrapped.force_flush(*args, **kwargs) and is_complete

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            wrapped.is_shut_down = True  # what ends from now on goes straight through
            with self._guard.catching():
                self._forwarder.drain_spans(_STALL_TIMEOUT_S)
            wrapped.is_finished = True
            result = wrapped.shutdown(*args, **kwargs)
            with self._guard.catching():
                if wrapped in self._forwarder.wrapped_processors:
                    self._forwarder.wrapped_processors.remove(wrapped)
                self._remove_patch(patch)
            return result

        self._forwarder.wrapped_processors.append(wrapped)
        patch = self._install_patch(
            wrapped.processor,
            {"on_start": on_start, "on_end": on_end, "force_flush": force_flush, "shutdown": shutdown},
        )

    def _install_patch(self, target: Any, functions: Mapping[str, Callable[..., Any]]) -> MethodPatch:
        patch = self._make_patch(target)
        patch.install(functions)
        self._patches.append(patch)
        return patch

    def _remove_patch(self, patch: MethodPatch) -> None:
        """From what has been shut down: an application may make many providers, and each is to be free to go."""
        patch.remove()
        if patch in self._patches:
            self._patches.remove(patch)
