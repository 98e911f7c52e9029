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

from splunk_profiler.host_profilers.annotation import HostId, is_transaction, key_of
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder
from splunk_profiler.host_profilers.transactions import Transactions
from splunk_profiler.host_profilers.wrapped_exporters import Exporting, within
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import real_lock

_FLUSH_MS = 30_000  # the SDK's default
_PATIENCE_S = 1.0


class SpanDeferral:
    """The exporting processors of the process, and what they have not been given yet.

    Args:
        transactions: the bookkeeping.
        forwarding: hands over what has waited.
        host_id: what is known of the host.
        decorate: makes a decoration of an object.
        notice: called when a transaction begins to wait; must be short.
        monotonic_ns: the clock.

    Attributes:
        active: whether transactions are deferred; else spans go straight through.
    """

    def __init__(
        self,
        transactions: Transactions,
        forwarding: SpanForwarder,
        host_id: HostId,
        decorate: Callable[[Any], MethodPatch],
        notice: Callable[[], None],
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.active = False
        self._transactions = transactions
        self._forwarding = forwarding
        self._host_id = host_id
        self._decorate = decorate
        self._notice = notice
        self._now_ns = monotonic_ns
        self._lock = real_lock()  # of the changes to what follows
        self._to_meet: deque[Any] = deque()
        self._watched: list[Any] = []  # sets of processors
        self._decorations: list[MethodPatch] = []
        self._guard = Guard("having spans wait for host profilers")
        self._told_of_full = False

    def meet(self, processors: Any) -> None:
        """Stand in the way of what exports among `processors`, now and when more are added. Never waits."""
        self._to_meet.append(processors)
        while self._to_meet and self._lock.acquire(blocking=False):  # whoever holds it does what came meanwhile
            try:
                with self._guard.watching():
                    if self._to_meet:
                        self._meet(self._to_meet.popleft())
            finally:
                self._lock.release()

    def _meet(self, processors: Any) -> None:
        for processor in within(processors):
            if hasattr(processor, "add_span_processor"):
                if not any(known is processor for known in self._watched):
                    self._watch(processor)
            elif not any(known.processor is processor for known in self._forwarding.exporting):
                self._stand_before(Exporting(processor))

    def _watch(self, processors: Any) -> None:
        add, shut_down = processors.add_span_processor, processors.shutdown
        if not hasattr(processors, "__dict__"):
            logger.debug("what is added to %s later cannot be made to wait", type(processors).__name__)
            return

        def add_span_processor(span_processor: Any) -> None:
            add(span_processor)
            with self._guard.watching():
                if self._watched:
                    self.meet(span_processor)

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            result = shut_down(*args, **kwargs)
            with self._guard.watching():
                self._watched = [known for known in self._watched if known is not processors]
                self._take_away(decoration)
            return result

        decoration = self._put(processors, {"add_span_processor": add_span_processor, "shutdown": shutdown})
        self._watched.append(processors)

    def leave(self, patience_s: float) -> None:
        """Forward all that waits, as `SpanForwarder.hand_over` does, and stand in nobody's way any more."""
        self.active = False
        self._forwarding.hand_over(patience_s)
        self._forwarding.exporting, self._watched = [], []
        for decoration in [*self._decorations]:
            self._take_away(decoration)
        self._forwarding.deliver_all()  # what was ending when `active` was switched off

    def start_anew(self, transactions: Transactions) -> None:
        """In a forked child: what waits is the parent's to forward, and no profiler has been heard of here."""
        self.active = False
        self._lock = real_lock()  # a thread that is not here may have held it
        self._to_meet.clear()
        self._transactions = transactions
        self._forwarding.start_anew(transactions)

    def _defer(self, one: Exporting, span: Any, context: Any) -> None:
        transaction = self._transactions.defer(key_of(context), one, span, self._now_ns())
        if transaction.closed:
            self._say_full()
            self._forwarding.deliver(transaction)
            return
        self._notice()
        self._forwarding.help()
        if one.shut or not self.active:  # since this span began to end: whoever did that has not seen it
            self._forwarding.deliver_all()

    def _say_full(self) -> None:
        if self._transactions.refused and not self._told_of_full:
            self._told_of_full = True
            logger.warning(
                "more transactions end than can wait for the host profiler: they are sent at once, and its stack-trace"
                " ids on them may be incomplete; ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE says how many"
                " can wait"
            )

    def _stand_before(self, one: Exporting) -> None:
        if not hasattr(one.processor, "__dict__"):
            logger.debug("%s cannot be made to wait for a host profiler", type(one.processor).__name__)
            return

        def on_start(span: Any, parent_context: Any = None) -> None:
            if self.active:
                try:
                    context = span.context
                    if is_transaction(span, context):
                        self._transactions.begin(key_of(context))
                except Exception as error:
                    self._guard.note(error)
            one.on_start(span, parent_context=parent_context)

        def on_end(span: Any) -> None:
            if self.active and not one.shut:
                try:
                    context = span.context
                    if context is not None and is_transaction(span, context) and one.takes_spans_anywhere:
                        self._defer(one, span, context)
                        return
                except Exception as error:
                    self._guard.note(error)
            one.pass_through(self._forwarding.annotated(span) if self._host_id.value else span)

        def force_flush(*args: Any, **kwargs: Any) -> Any:
            timeout_ms = kwargs.get("timeout_millis", args[0] if args else None)
            complete = True
            with self._guard.watching():
                complete = self._forwarding.flush(one, int(_FLUSH_MS if timeout_ms is None else timeout_ms))
            return one.force_flush(*args, **kwargs) and complete

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            one.shut = True  # what ends from now on goes straight through
            with self._guard.watching():
                self._forwarding.hand_over(_PATIENCE_S)
            one.gone = True
            result = one.shutdown(*args, **kwargs)
            with self._guard.watching():
                if one in self._forwarding.exporting:
                    self._forwarding.exporting.remove(one)
                self._take_away(decoration)
            return result

        self._forwarding.exporting.append(one)
        decoration = self._put(
            one.processor,
            {"on_start": on_start, "on_end": on_end, "force_flush": force_flush, "shutdown": shutdown},
        )

    def _put(self, target: Any, functions: Mapping[str, Callable[..., Any]]) -> MethodPatch:
        decoration = self._decorate(target)
        decoration.install(functions)
        self._decorations.append(decoration)
        return decoration

    def _take_away(self, decoration: MethodPatch) -> None:
        """From what has been shut down: an application may make many providers, and each is to be free to go."""
        decoration.remove()
        if decoration in self._decorations:
            self._decorations.remove(decoration)
