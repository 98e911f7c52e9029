"""Has the transactions of exporting span processors wait until the host profiler has said what it saw in them.

`Deferral` stands in the way of the processors that export: their `on_start`, `on_end`, `force_flush` and `shutdown`
are replaced on the instance. So they keep their place, their type and their identity, and an application that has one
in its hands and flushes it gets what is deferred as well. Called on the application's threads, which must not wait, and
on the thread that forwards. Knows no messages and no settings; must not load anything of the SDK.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from splunk_profiler.correlation.annotation import HostId, is_transaction, key_of, with_stacks
from splunk_profiler.correlation.transactions import Transaction, Transactions
from splunk_profiler.guard import Guard, logger
from splunk_profiler.threads import real_lock

_NS = 1_000_000_000
_FLUSH_MS = 30_000  # the SDK's default
_SHUTDOWN_S = 5.0
_SLOW_NS = 10_000_000
_OVERDUE_NS = 1 * _NS
_LOT = 256  # spans between two looks at the clock or at the queues
_EXPORTERS = ("span_exporter", "_span_exporter", "exporter", "_exporter")
_DEPTH = 4  # of processors within processors


class Decoration(Protocol):
    """Replaces methods of an object until `remove`."""

    def install(self, functions: Mapping[str, Callable[..., Any]], /) -> None:
        """Put them there."""

    def remove(self) -> None:
        """Put back what was there."""


class Exporting:
    """One exporting processor, with its methods as they were.

    Attributes:
        processor: the processor.
        on_end: exports a span, or queues it.
        shut: it has been shut down and takes no more.
    """

    __slots__ = ("force_flush", "on_end", "on_start", "processor", "shut", "shutdown")

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.on_start = processor.on_start
        self.on_end = processor.on_end
        self.force_flush = processor.force_flush
        self.shutdown = processor.shutdown
        self.shut = False

    @property
    def room(self) -> int:
        """How many spans fit into its queue before it drops others; as many as one likes if nobody can tell."""
        queue = getattr(getattr(self.processor, "_batch_processor", None), "_queue", None)
        most = getattr(queue, "maxlen", None)
        return sys.maxsize if queue is None or most is None else most - len(queue)


class Deferral:
    """The exporting processors of the process, and what they have not been given yet.

    Args:
        transactions: the bookkeeping.
        host_id: what is known of the host.
        decorate: makes a decoration of an object.
        notice: called when a transaction begins to wait; must be short.
        settle: has the messages counted that have come until now; called before all that waits is forwarded.
        monotonic_ns: the clock.

    Attributes:
        active: whether transactions are deferred; else spans go straight through.
    """

    def __init__(
        self,
        transactions: Transactions,
        host_id: HostId,
        decorate: Callable[[Any], Decoration],
        notice: Callable[[], None],
        settle: Callable[[], None],
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.active = False
        self._transactions = transactions
        self._host_id = host_id
        self._decorate = decorate
        self._notice = notice
        self._settle = settle
        self._now_ns = monotonic_ns
        self._lock = real_lock()  # of the changes to what follows
        self._to_meet: deque[Any] = deque()
        self._exporting: list[Exporting] = []
        self._watched: list[Any] = []  # sets of processors
        self._decorations: list[Decoration] = []
        self._guard = Guard("handing spans to the application's exporters")
        self._told_of_full = False

    def meet(self, processors: Any) -> None:
        """Stand in the way of what exports among `processors`, now and when more are added. Never waits."""
        self._to_meet.append(processors)
        while self._to_meet and self._lock.acquire(blocking=False):  # whoever holds it does what came meanwhile
            try:
                self._meet(self._to_meet.popleft())
            except IndexError:
                pass
            finally:
                self._lock.release()

    def _meet(self, processors: Any) -> None:
        for processor in exporting(processors):
            if not any(known.processor is processor for known in self._exporting):
                self._stand_before(Exporting(processor))
        add = getattr(processors, "add_span_processor", None)
        if add is not None and not any(known is processors for known in self._watched):
            self._watched.append(processors)

            def add_span_processor(span_processor: Any) -> None:
                add(span_processor)
                with self._guard.watching():
                    if self._watched:
                        self.meet(span_processor)

            self._put(processors, {"add_span_processor": add_span_processor})

    def leave(self, until_ns: int) -> None:
        """Forward all that waits, and stand in nobody's way any more.

        Args:
            until_ns: from then on no exporter is waited for.
        """
        self.active = False
        self._drain_or_drop(until_ns)
        self._exporting, self._watched = [], []
        decorations, self._decorations = self._decorations, []
        for decoration in decorations:
            decoration.remove()

    def start_anew(self, transactions: Transactions) -> None:
        """In a forked child: what waits is the parent's to forward, and no profiler has been heard of here."""
        self.active = False
        self._lock = real_lock()  # a thread that is not here may have held it
        self._to_meet.clear()
        self._transactions = transactions

    def forward(self, ended_before_ns: int) -> bool:
        """Forward what ended before then. False if there is more of it, for which an exporter has no room now."""
        for transaction in self._transactions.due(ended_before_ns - _OVERDUE_NS):
            self._deliver(transaction)
        while True:
            first_ns = self._transactions.first_end_ns()
            if first_ns is None or first_ns > ended_before_ns:
                return True
            room = self._room()
            if room <= 0:
                return False
            for transaction in self._transactions.due(ended_before_ns, min(room, _LOT)):
                self._deliver(transaction)

    def _room(self) -> int:
        return min((one.room for one in self._exporting), default=sys.maxsize)

    def _drain(self, until_ns: int) -> bool:
        """Forward all that waits, without loss: a full queue is exported first. False if that takes too long."""
        self._settle()
        while self._transactions.first_end_ns() is not None:
            began_ns = self._now_ns()
            if began_ns < until_ns:
                for one in [one for one in self._exporting if one.room <= 0]:
                    with self._guard.watching():
                        one.force_flush()
            for transaction in self._transactions.due(began_ns, min(max(self._room(), 1), _LOT)):
                delivered_ns = self._now_ns()
                self._deliver(transaction)
                now_ns = self._now_ns()
                if now_ns > until_ns and now_ns - delivered_ns > _SLOW_NS:
                    return False
        return True

    def _drain_or_drop(self, until_ns: int) -> None:
        if self._drain(until_ns):
            return
        lost = [one for rest in self._transactions.due(self._now_ns()) for one in rest.take()]
        if lost:
            logger.warning(
                "%d spans that waited for the host profiler were not sent: their exporter takes too long", len(lost)
            )

    def _deliver(self, transaction: Transaction) -> None:
        """Forward the spans of a transaction that is closed, with the stacks that were seen in it."""
        stacks = transaction.stacks
        original = made = None
        for one, span in transaction.take():
            try:
                if span is not original:
                    original, made = span, self._host_id.added(with_stacks(span, stacks) if stacks else span)
                one.on_end(made)
            except Exception as error:
                self._guard.note(error)

    def _defer(self, one: Exporting, span: Any, context: Any) -> None:
        transaction = self._transactions.defer(key_of(context), one, span, self._now_ns())
        if transaction.closed:
            self._say_full()
            self._deliver(transaction)
        else:
            self._notice()

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
                    if context is not None and is_transaction(span, context):
                        self._defer(one, span, context)
                        return
                except Exception as error:
                    self._guard.note(error)
            one.on_end(self._host_id.added(span) if self._host_id.value else span)

        def force_flush(*args: Any, **kwargs: Any) -> Any:
            timeout_ms = kwargs.get("timeout_millis", args[0] if args else None)
            until_ns = self._now_ns() + int(_FLUSH_MS if timeout_ms is None else timeout_ms) * 1_000_000
            complete = True
            with self._guard.watching():
                complete = self._drain(until_ns)
            return one.force_flush(*args, **kwargs) and complete

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            with self._guard.watching():
                self._drain_or_drop(self._now_ns() + int(_SHUTDOWN_S * _NS))
            one.shut = True
            return one.shutdown(*args, **kwargs)

        self._exporting.append(one)
        self._put(
            one.processor,
            {"on_start": on_start, "on_end": on_end, "force_flush": force_flush, "shutdown": shutdown},
        )

    def _put(self, target: Any, functions: Mapping[str, Callable[..., Any]]) -> None:
        decoration = self._decorate(target)
        decoration.install(functions)
        self._decorations.append(decoration)


def exporting(processor: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """The processors that export, in `processor`: itself, those of a set, or one that it hands spans on to."""
    several = getattr(processor, "_span_processors", None)
    if isinstance(several, (tuple, list)):
        inner = list(several)
    elif any(callable(getattr(getattr(processor, name, None), "export", None)) for name in _EXPORTERS):
        yield processor
        return
    else:
        inner = []
        for value in list(getattr(processor, "__dict__", {}).values()):
            inner += value if isinstance(value, (tuple, list)) else [value]
    for other in inner:
        if depth > 0 and callable(getattr(other, "on_end", None)) and callable(getattr(other, "on_start", None)):
            yield from exporting(other, depth - 1)
