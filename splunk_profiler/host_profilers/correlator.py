"""Receives the messages of host profilers, and has their stack-trace ids written on transactions.

The thread of a `Correlator` counts all messages that have come, then forwards the transactions that have
waited long enough. A second one empties the socket, in C and without the GIL. No thread runs and no span is
touched before there is a socket; in `auto`, before a profiler has sent a message to it.

Specification: Elastic universal profiling integration, "Messaging Socket" and "APM Agent output of correlation data".
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Mapping
from errno import EBADF
from functools import partial
from typing import Any, NamedTuple

from splunk_profiler.host_profilers.message_handler import MessageHandler
from splunk_profiler.host_profilers.pending_spans import PendingSpans
from splunk_profiler.host_profilers.span_deferral import SpanDeferral
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder
from splunk_profiler.otel.span_processors import WeakIdentitySet
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import WakeEvent, Worker

_NS_PER_S = 1_000_000_000
_IDLE_S = 3600.0
_BATCH_INTERVAL_S = 0.02  # a wake-up for each transaction would cost more than the transaction
_MIN_PAUSE_S = 0.005
_MAX_PAUSE_S = 0.1
_RECEIVE_COST_S = 2e-6  # of one message, before `take`
_JOIN_S = 0.5


class CorrelationCounters(NamedTuple):
    """Numbers of messages and samples until now.

    Attributes:
        unmatched: samples of unknown transactions: not sampled, or forwarded already.
        beyond: samples beyond `MAX_STACK_IDS` of one transaction.
        refused: transactions that could not wait because the buffer was full.
    """

    received: int
    too_long: int
    malformed: int
    unknown: int
    matched: int
    unmatched: int
    beyond: int
    refused: int


class Correlator:
    """The correlation of one process; continues in a forked child.

    Args:
        at_once: defer transactions as soon as there is a socket, not only after a message.
        buffer_size: number of transactions that may wait.
    """

    def __init__(
        self,
        at_once: bool,
        buffer_size: int,
        make_reader: Callable[[int], Any],
        monotonic_ns: Callable[[], int] = clocks.monotonic_ns,
    ) -> None:
        self._at_once = at_once
        self._make_reader = make_reader
        self._now_ns = monotonic_ns
        self._guard = Guard("reading the messages of host profilers")
        self._handler = MessageHandler(self._activate)
        self._pending = PendingSpans(buffer_size, self._handler.host_id)
        self._forwarder = SpanForwarder(self._pending, self._submit, monotonic_ns)
        self._deferral = SpanDeferral(self._pending, self._forwarder, self._wake_if_idle, monotonic_ns)
        self._processor_sets = WeakIdentitySet()
        self._reader: Any = None
        self._closed_reader_counts = (0, 0)
        self._last_received = 0  # messages, by the last turn
        # Of a reader without a thread, and what to call when its socket is lost; who takes it out starts the thread.
        self._unstarted: dict[str, tuple[Any, Callable[[], None]]] = {}
        self._thread: Worker | None = None
        self._is_idle = False
        self._is_stopping = False
        self._submitted: list[Callable[[], None]] = []
        self._wake_event = WakeEvent()  # ends a pause

    def set_service_attributes(self, attributes: Mapping[str, object]) -> None:
        """Take the attributes of the service's resource."""
        self._handler.set_service_attributes(attributes)

    def attach(self, processors: Any) -> None:
        """Take a provider's set of span processors."""
        self._processor_sets.add(processors)
        if self._deferral.is_active:
            self._deferral.attach(processors)

    def listen(self, descriptor: int, on_closed: Callable[[], None], is_open: Callable[[], bool] | None = None) -> None:
        """Receive the messages of a socket from now on, in `auto` from the first call of `look` that finds one.

        The descriptor must stay until `close`. `is_open` returns False if the application has closed the socket; the
        descriptor may then be of something else. `on_closed` is called on a thread of ours.

        Raises:
            OSError, RuntimeError: it cannot be read, or the process can make no more threads.
        """
        self.close()
        reader = self._make_reader(descriptor)
        if is_open is not None and not is_open():
            raise OSError(EBADF, "the socket was closed meanwhile")
        self._reader = reader
        if not self._at_once and not self._deferral.is_active:
            self._unstarted["reader"] = (reader, on_closed)
            return
        try:
            if self._at_once:
                reader.start()
            self._start_thread(reader, on_closed)
        except BaseException:
            self.close()
            raise
        self.defer_at_once()

    def look(self) -> None:
        """Begin to receive if a profiler has sent its first message; for a thread of ours, once a second.

        Most processes never get one, and need no thread for that. The kernel keeps the first eleven meanwhile.

        Raises:
            RuntimeError: the process can make no more threads.
        """
        found = self._unstarted.get("reader")
        if found is None or not found[0].has_message or self._unstarted.pop("reader", None) is not found:
            return
        try:
            self._start_thread(*found)
        except BaseException:
            self._unstarted.setdefault("reader", found)
            raise

    def _start_thread(self, reader: Any, on_closed: Callable[[], None]) -> None:
        thread = Worker("correlator", lambda: self._correlate(reader, on_closed))
        thread.start()
        self._thread = thread

    def defer_at_once(self) -> None:
        """Defer transactions from now on, unless that waits for the first message of a host profiler."""
        if self._at_once:
            self._activate()

    def close(self) -> None:
        """Receive no more messages. Transactions that wait stay."""
        self._unstarted.clear()
        reader = self._reader
        if reader is not None:
            reader.stop()  # first: a signal handler may raise at any moment
        if self._reader is reader:  # else another thread, for which a stop has not waited, listens since
            self._closed_reader_counts, self._reader = self._received_totals(reader), None
        thread, self._thread = self._thread, None
        self._wake_event.set()
        if thread is not None and thread.ident != _thread.get_ident():
            thread.join(_JOIN_S)

    def stop(self, timeout_s: float) -> None:
        """Forward all that waits, as `SpanForwarder.drain_spans` does; then close."""
        self._is_stopping = True  # profilers go on sending: their messages must not activate it again
        with self._guard.catching():
            self._deferral.detach(timeout_s)
        self.close()
        counts = self.counts()
        if counts.received:
            logger.debug("from host profilers: %s", counts)

    def hold_for_fork(self, timeout_s: float) -> None:
        """Keep the correlator thread out of exporters; see `CurrentExport.hold_for_fork`."""
        self._forwarder.current_export.hold_for_fork(timeout_s)

    def release_after_fork(self) -> None:
        """Let the correlator thread export again, in the parent."""
        self._forwarder.current_export.release_after_fork()

    def reset_after_fork(self) -> None:
        """Drop the parent's threads, socket and transactions in a forked child, before anything else."""
        self._reader = None
        self._closed_reader_counts = (0, 0)
        self._last_received = 0
        self._thread = None
        self._unstarted = {}
        self._is_idle = self._is_stopping = False
        self._submitted = []
        self._wake_event = WakeEvent()
        self._handler.reset_after_fork()
        self._deferral.reset_after_fork()

    def resource(self, resource: Any) -> Any:
        """Return `resource`, with the profiler's ``host.id`` if it has none of its own."""
        return self._handler.host_id.resource(resource)

    def counts(self) -> CorrelationCounters:
        """Return the numbers until now."""
        received, too_long = self._received_totals(self._reader)
        transactions = self._pending.transactions
        return CorrelationCounters(
            received,
            too_long,
            self._handler.malformed.total(),
            self._handler.unknown.total(),
            transactions.matched,
            transactions.unmatched,
            transactions.beyond,
            transactions.refused,
        )

    def _received_totals(self, reader: Any) -> tuple[int, int]:
        """Return the numbers of messages received and too long, of all readers until now."""
        received, too_long = (0, 0) if reader is None else reader.counts()
        return self._closed_reader_counts[0] + received, self._closed_reader_counts[1] + too_long

    def _wake_if_idle(self) -> None:
        """Wake the correlator thread for the first transaction that waits; on the application's threads."""
        if self._is_idle:
            self._is_idle = False
            reader = self._reader
            if reader is not None:
                reader.wake()

    def _submit(self, work: Callable[[], None] | None) -> bool:
        """Wake the thread, to run `work` after all messages are counted; False while it has nothing to do."""
        reader = self._reader
        if reader is None or not reader.is_receiving:
            return False
        if work is not None:
            self._submitted.append(work)
        reader.wake()
        self._wake_event.set()
        return True

    def _activate(self) -> bool:
        """Defer transactions from now on. Return False if they are deferred already, or after `stop`."""
        if self._deferral.is_active or self._is_stopping:
            return False
        self._deferral.is_active = True
        for processors in self._processor_sets:
            self._deferral.attach(processors)
        return True

    def _correlate(self, reader: Any, on_closed: Callable[[], None]) -> None:
        while self._reader is reader and not (reader.is_lost or reader.is_stopped):
            # Transactions that wait are forwarded without a message, also if no thread can be made.
            for step in (reader.start, partial(self._correlate_once, reader)):
                try:
                    step()
                except Exception as error:
                    self._guard.note(error)
                    self._wake_event.wait(_MAX_PAUSE_S)  # it may fail each time
        if self._reader is reader and reader.is_lost:
            with self._guard.catching():
                on_closed()

    def _correlate_once(self, reader: Any) -> None:
        submitted, self._submitted = self._submitted, []
        try:
            messages = reader.take(0 if submitted or not reader.is_receiving else self._wait_s())
            self._is_idle = False
            began_ns = self._now_ns()
            # Take again: the GIL may have come late, and messages until `began_ns` are in time.
            messages += reader.take(0)
            for message in messages:
                self._handler.handle(message, self._pending.transactions)
            took_s = (self._now_ns() - began_ns) / _NS_PER_S
        finally:
            for work in submitted:
                with self._guard.catching():
                    work()
        if self._reader is not reader:
            return
        self._forwarder.forward(began_ns - self._handler.delay_ns)
        received, too_long = self._received_totals(reader)
        if too_long:
            self._handler.once_log.log(
                "a message of a host profiler had more than 65,536 bytes and was discarded (logged once)"
            )
        new_messages, self._last_received = received - self._last_received, received
        if new_messages:
            # Messages get a tenth of a core at most: the buffer fills, then the socket, and senders
            # wait. Many short turns cost more than few long ones, so there is a least pause.
            self._wake_event.wait(min(max(9 * (took_s + new_messages * _RECEIVE_COST_S), _MIN_PAUSE_S), _MAX_PAUSE_S))

    def _wait_s(self) -> float:
        if self._pending.correlator_queue:
            return 0
        self._is_idle = True
        first_ns = self._pending.transactions.first_end_ns()
        if first_ns is None:
            return _IDLE_S
        self._is_idle = False
        left_s = (first_ns + self._handler.delay_ns - self._now_ns()) / _NS_PER_S
        return max(left_s, _BATCH_INTERVAL_S if left_s > 0 else _MIN_PAUSE_S)
