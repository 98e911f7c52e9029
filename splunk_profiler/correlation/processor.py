"""Has the transactions of exporting span processors wait until the host profiler has said what it saw in them.

`Deferral` stands in the way of the processors that export: their `on_start`, `on_end`, `force_flush` and `shutdown`
are replaced on the instance. So they keep their place, their type and their identity, and an application that has one
in its hands and flushes it gets what is deferred as well. Called on the application's threads, which must not wait, and
on the thread that forwards. Knows no messages and no settings; must not load anything of the SDK.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from splunk_profiler.correlation.annotation import HostId, is_transaction, key_of, with_stacks
from splunk_profiler.correlation.transactions import Transaction, Transactions
from splunk_profiler.guard import Guard, logger
from splunk_profiler.threads import let_the_application_run, real_lock

_NS = 1_000_000_000
_FLUSH_MS = 30_000  # the SDK's default
_MOST_NS = 5 * _NS  # that a shutdown takes longer than the SDK's own
_PATIENCE_NS = 1 * _NS
_ROOM_S = 0.005
_SLOW_NS = 10_000_000
_OVERDUE_NS = 1 * _NS
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
        shut: it is being shut down; nothing is to wait for it any more.
        gone: it has been given the last it takes.
    """

    __slots__ = ("force_flush", "gone", "on_end", "on_start", "processor", "shut", "shutdown")

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.on_start = processor.on_start
        self.on_end = processor.on_end
        self.force_flush = processor.force_flush
        self.shutdown = processor.shutdown
        self.shut = self.gone = False

    @property
    def is_full(self) -> bool:
        """Whether the next span would cost one that waits in its queue; False if nobody can tell."""
        queue = getattr(getattr(self.processor, "_batch_processor", None), "_queue", None)
        most = getattr(queue, "maxlen", None)
        return queue is not None and most is not None and len(queue) >= most and not self.gone

    def hurry(self) -> None:
        """Have its thread export, if it has one: a wake-up of the SDK's may be lost, and is then made up for later."""
        awaken = getattr(getattr(self.processor, "_batch_processor", None), "_worker_awaken", None)
        if awaken is not None:
            awaken.set()


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
        for processor in within(processors):
            if hasattr(processor, "add_span_processor"):
                if not any(known is processor for known in self._watched):
                    self._watch(processor)
            elif not any(known.processor is processor for known in self._exporting):
                self._stand_before(Exporting(processor))

    def _watch(self, processors: Any) -> None:
        add = processors.add_span_processor
        self._watched.append(processors)

        def add_span_processor(span_processor: Any) -> None:
            add(span_processor)
            with self._guard.watching():
                if self._watched:
                    self.meet(span_processor)

        self._put(processors, {"add_span_processor": add_span_processor})

    def leave(self, timeout_s: float) -> None:
        """Forward all that waits, and stand in nobody's way any more.

        Args:
            timeout_s: how long an exporter is waited for that takes nothing; one that does gets up to 5 seconds, so
                that nothing is lost.
        """
        self.active = False
        self._drain(self._now_ns() + (_MOST_NS if timeout_s > 0 else 0), int(timeout_s * _NS))
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
        overdue_ns = ended_before_ns - _OVERDUE_NS

        def ready(transaction: Transaction) -> bool:
            return transaction.ended_ns < overdue_ns or not any(one.is_full for one in self._exporting)

        for transaction in self._transactions.due(ended_before_ns, ready):
            self._deliver(transaction)
        first_ns = self._transactions.first_end_ns()
        return first_ns is None or first_ns > ended_before_ns

    def _drain(self, until_ns: int, patience_ns: int, flushed: Exporting | None = None) -> bool:
        """Forward all that has ended until now, without loss as far as exporters take it.

        Args:
            until_ns: from then on nobody is waited for.
            patience_ns: how long an exporter is waited for that is full and takes nothing. It is given the rest all the
                same, and its SDK says what it drops for that.
            flushed: the exporter that was asked for all this, which may export on this thread; what nobody takes
                in time then stays. Else it is dropped.

        Returns:
            False if something is left.
        """
        self._settle()
        began_ns = moved_ns = self._now_ns()
        stuck: list[Exporting] = []
        slow: list[Exporting] = []
        lost = 0

        def hand(one: Exporting, span: Any) -> None:
            nonlocal lost
            if one in slow:
                lost += 1
                return
            handed_ns = self._now_ns()
            one.on_end(span)
            done_ns = self._now_ns()
            if done_ns > until_ns and done_ns - handed_ns > _SLOW_NS:
                slow.append(one)

        while True:
            first_ns = self._transactions.first_end_ns()
            if first_ns is None or first_ns > began_ns:
                break
            full = [one for one in self._exporting if one.is_full and one not in stuck]
            if flushed in full:
                flushed.force_flush()
                full.remove(flushed)
            if full:
                if self._now_ns() < min(until_ns, moved_ns + patience_ns):
                    for one in full:
                        one.hurry()
                    let_the_application_run(_ROOM_S)
                    continue
                stuck += full
            for transaction in self._transactions.due(began_ns, lambda _: True):
                self._deliver(transaction, hand)
                break
            if slow and flushed is not None:
                return False
            moved_ns = self._now_ns()
        if lost:
            logger.warning(
                "%d spans that waited for a host profiler were not sent: their exporter takes too long", lost
            )
        return True

    def _deliver(
        self, transaction: Transaction, hand: Callable[[Exporting, Any], None] = lambda one, span: one.on_end(span)
    ) -> None:
        """Forward the spans of a transaction that is closed, with the stacks that were seen in it."""
        stacks = transaction.stacks
        original = made = None
        for one, span in transaction.take():
            try:
                if span is not original:
                    original, made = span, self._host_id.added(with_stacks(span, stacks) if stacks else span)
                hand(one, made)
            except Exception as error:
                self._guard.note(error)

    def _defer(self, one: Exporting, span: Any, context: Any) -> None:
        transaction = self._transactions.defer(key_of(context), one, span, self._now_ns())
        if transaction.closed:
            self._say_full()
            self._deliver(transaction)
            return
        self._notice()
        if one.shut or not self.active:  # since this span began to end: whoever did that has not seen it
            for left in self._transactions.due(self._now_ns(), lambda _: True):
                self._deliver(left)

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
                complete = self._drain(until_ns, _PATIENCE_NS, one)
            return one.force_flush(*args, **kwargs) and complete

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            one.shut = True  # what ends from now on goes straight through
            with self._guard.watching():
                self._drain(self._now_ns() + _MOST_NS, _PATIENCE_NS)
            one.gone = True
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


def within(processor: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """The sets of processors, and the processors that export, in `processor`: itself, and what it hands spans to."""
    several = getattr(processor, "_span_processors", None)
    if isinstance(several, (tuple, list)):
        if callable(getattr(processor, "add_span_processor", None)):
            yield processor
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
            yield from within(other, depth - 1)
