"""Defers the transactions of exporting span processors until a host profiler has reported on them.

`SpanDeferral` replaces `on_start`, `on_end`, `force_flush` and `shutdown` on the instances of the
processors that export. So each keeps its place, type and identity, and a flush of it also brings out
what is deferred. Runs on the application's threads, which must not wait. Knows no messages and no
settings; must not load anything of the SDK.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from splunk_profiler.host_profilers.annotation import is_transaction, transaction_key
from splunk_profiler.host_profilers.pending_spans import PendingSpans
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder
from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor, iter_processors
from splunk_profiler.system.guard import Guard, OnceLog, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import OwnedLock

_DEFAULT_FLUSH_TIMEOUT_MS = 30_000  # the SDK's default
_STALL_TIMEOUT_S = 1.0


class SpanDeferral:
    """The patches of the process's exporting processors. While `is_active` is False, spans go straight through."""

    def __init__(
        self,
        pending: PendingSpans,
        forwarder: SpanForwarder,
        on_defer: Callable[[], None],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.is_active = False
        self._pending = pending
        self._forwarder = forwarder
        self._on_defer = on_defer  # called when a transaction begins to wait; must be short
        self._now_ns = monotonic_ns
        self._lock = OwnedLock()  # held while the processors of `_unwrapped` are wrapped
        self._unwrapped: deque[Any] = deque()
        self._patched_sets: list[Any] = []  # sets of processors
        self._patches: list[MethodPatch] = []
        self._guard = Guard("deferring spans for host profilers")
        self._once_log = OnceLog()

    def attach(self, processors: Any) -> None:
        """Wrap what exports among `processors`, now and when more are added. Never waits."""
        self._unwrapped.append(processors)
        # A thread that holds the lock also wraps what other threads append meanwhile.
        while self._unwrapped and self._lock.acquire(0):
            try:
                with self._guard.catching():
                    if self._unwrapped:
                        self._wrap_processors(self._unwrapped.popleft())
            finally:
                self._lock.release()

    def detach(self, stall_timeout_s: float) -> None:
        """Export all that waits, as `SpanForwarder.drain_spans` does, and remove all patches."""
        self.is_active = False
        self._forwarder.drain_spans(stall_timeout_s)
        self._pending.processors, self._patched_sets = [], []
        for patch in [*self._patches]:
            self._remove_patch(patch)
        self._pending.export_all(self._now_ns())  # spans that saw `is_active` before it changed

    def reset_after_fork(self) -> None:
        """Drop what waits in a forked child: the parent exports it. No profiler is known here yet."""
        self.is_active = False
        self._lock = OwnedLock()  # a thread of the parent may have held it
        self._unwrapped.clear()
        self._forwarder.reset_after_fork()

    def _wrap_processors(self, processors: Any) -> None:
        for processor in iter_processors(processors):
            if hasattr(processor, "add_span_processor"):
                if not any(known is processor for known in self._patched_sets):
                    self._patch_set(processor)
            elif not any(known.processor is processor for known in self._pending.processors):
                self._wrap(WrappedProcessor(processor, self._now_ns))

    def _patch_set(self, processors: Any) -> None:
        add, shut_down = processors.add_span_processor, processors.shutdown
        if not hasattr(processors, "__dict__"):
            logger.debug("processors added to %s later are not deferred", type(processors).__name__)
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

    def _wrap(self, wrapped: WrappedProcessor) -> None:
        if not hasattr(wrapped.processor, "__dict__"):
            logger.debug("the spans of %s are not deferred for host profilers", type(wrapped.processor).__name__)
            return

        def on_start(span: Any, parent_context: Any = None) -> None:
            if self.is_active and wrapped.accepts_any_thread:
                self._begin(span)
            wrapped.on_start(span, parent_context=parent_context)

        def on_end(span: Any) -> None:
            if not (self.is_active and self._defer(wrapped, span)):
                wrapped.pass_through(self._pending.annotate(span) if self._pending.host_id.value else span)

        def force_flush(*args: Any, **kwargs: Any) -> Any:
            timeout_ms = kwargs.get("timeout_millis", args[0] if args else None)
            is_complete = self._flush(wrapped, timeout_ms)
            return wrapped.force_flush(*args, **kwargs) and is_complete

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            self._drain(wrapped)
            result = wrapped.shutdown(*args, **kwargs)
            with self._guard.catching():
                if wrapped in self._pending.processors:
                    self._pending.processors.remove(wrapped)
                self._remove_patch(patch)
            return result

        self._pending.processors.append(wrapped)
        patch = self._install_patch(
            wrapped.processor,
            {"on_start": on_start, "on_end": on_end, "force_flush": force_flush, "shutdown": shutdown},
        )

    def _begin(self, span: Any) -> None:
        try:
            context = span.context
            if is_transaction(span, context):
                self._pending.transactions.begin(transaction_key(context))
        except Exception as error:
            self._guard.note(error)

    def _defer(self, wrapped: WrappedProcessor, span: Any) -> bool:
        """Defer `span`. Return False if it must go straight through."""
        try:
            context = span.context
            if wrapped.is_shut_down or context is None or not is_transaction(span, context):
                return False
            if not wrapped.accepts_any_thread:
                return False
            self._defer_transaction(wrapped, span, transaction_key(context))
        except Exception as error:
            self._guard.note(error)
            return False
        return True

    def _defer_transaction(self, wrapped: WrappedProcessor, span: Any, key: int) -> None:
        transaction = self._pending.transactions.defer(key, wrapped, span, self._now_ns())
        if transaction.is_closed:
            self._warn_if_full()
            self._pending.export_transaction(transaction)
            return
        self._on_defer()
        self._forwarder.forward_excess()
        # A shutdown or a detach since the span began to end has not seen it.
        if wrapped.is_shut_down or not self.is_active:
            self._pending.export_all(self._now_ns())

    def _flush(self, wrapped: WrappedProcessor, timeout_ms: Any) -> bool:
        with self._guard.catching():
            return self._forwarder.flush(wrapped, int(_DEFAULT_FLUSH_TIMEOUT_MS if timeout_ms is None else timeout_ms))
        return True

    def _drain(self, wrapped: WrappedProcessor) -> None:
        wrapped.is_shut_down = True  # spans that end from now on go straight through
        with self._guard.catching():
            self._forwarder.drain_spans(_STALL_TIMEOUT_S)
        wrapped.is_finished = True

    def _warn_if_full(self) -> None:
        if self._pending.transactions.refused:
            self._once_log.log(
                "more transactions end than can wait for the host profiler: they are sent at once, and its stack-trace"
                " ids on them may be incomplete; ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE says how many"
                " can wait"
            )

    def _install_patch(self, target: Any, functions: Mapping[str, Callable[..., Any]]) -> MethodPatch:
        patch = MethodPatch(target)
        patch.install(functions)
        self._patches.append(patch)
        return patch

    def _remove_patch(self, patch: MethodPatch) -> None:
        """Undo `patch` and forget it: objects that were shut down must not be kept."""
        patch.remove()
        if patch in self._patches:
            self._patches.remove(patch)
