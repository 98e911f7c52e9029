"""Takes what host profilers say, and has it written on the transactions that it is about.

`Correlator` owns two threads while it listens: one only empties the socket, in C and without the GIL; the other counts
what has come and forwards the transactions that have waited long enough, so that everything that came before is counted
first. Nothing runs, and no span is touched, before there is a socket; in `auto`, before a profiler has been heard of.

Specification: Elastic universal profiling integration, "Messaging Socket" and "APM Agent output of correlation data".
"""

from __future__ import annotations

import _thread
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import EBADF
from typing import Any, NamedTuple

from splunk_profiler.config.parsers import redact
from splunk_profiler.host_profilers.annotation import HOST_ID, HostId
from splunk_profiler.host_profilers.messages import MalformedMessage, ProfilerRegistration, TraceCorrelation, decode
from splunk_profiler.host_profilers.span_deferral import SpanDeferral
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder
from splunk_profiler.host_profilers.transactions import Transactions
from splunk_profiler.otel.providers import WeakIdentitySet
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import WakeEvent, Worker

_NS_PER_S = 1_000_000_000
_DEFAULT_DELAY_NS = 1 * _NS_PER_S  # while no profiler has said how long it takes
_DELAY_MARGIN_NS = 20_000_000
_MAX_DELAY_MS = 60_000
_IDLE_S = 3600.0
_BATCH_INTERVAL_S = (
    0.02  # transactions are forwarded in lots: a thread that wakes for each of them costs more than they do
)
_MIN_PAUSE_S = 0.005
_MAX_PAUSE_S = 0.1
_RECEIVE_COST_S = 2e-6  # what a message has cost before it is taken
_JOIN_S = 0.5
_MAX_KINDS = 64
_OTHER_KINDS = -1
_MAX_HOST_ID_LENGTH = 64


@dataclass(frozen=True, slots=True)
class CorrelationConfig:
    """How the correlation is to be done.

    Attributes:
        at_once: transactions wait from when the socket is listened to; else only after a profiler has been heard of.
        buffer_size: how many transactions may wait.
    """

    at_once: bool
    buffer_size: int


class Counts(NamedTuple):
    """What has come until now.

    Attributes:
        received: messages.
        too_long: messages that were discarded, for their length.
        malformed: messages that were discarded because an end of them was missing.
        unknown: messages of types that are not known.
        matched: samples that were counted to a transaction.
        unmatched: samples of transactions that are not known: not sampled, or forwarded already.
        beyond: samples of a transaction that had too many.
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
    """One process's correlation; goes on in a forked child.

    Args:
        correlation_config: how.
        make_mailbox: file descriptor of a socket → what gathers its messages
            (``splunk_profiler._context.SocketReader``).
        make_patch: makes a decoration of an object.
        monotonic_ns: the clock.
    """

    def __init__(
        self,
        correlation_config: CorrelationConfig,
        make_mailbox: Callable[[int], Any],
        make_patch: Callable[[Any], MethodPatch],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._config = correlation_config
        self._make_mailbox = make_mailbox
        self._now_ns = monotonic_ns
        self._guard = Guard("reading the messages of host profilers")
        self._host_id = HostId(self._warn_host_id_mismatch)
        self._own_host_id = ""
        self._transactions = Transactions(correlation_config.buffer_size)
        self._forwarder = SpanForwarder(self._transactions, self._host_id, self._submit, monotonic_ns)
        self._deferral = SpanDeferral(
            self._transactions,
            self._forwarder,
            self._host_id,
            make_patch,
            self._wake_if_idle,
            monotonic_ns=monotonic_ns,
        )
        self._processor_sets = WeakIdentitySet()  # of processors
        self._mailbox: Any = None
        self._closed_mailbox_counts = (0, 0)  # what mailboxes have counted that are no more
        self._last_received = 0  # messages, by the last turn
        self._threads: list[Worker] = []
        self._on_closed: Callable[[], None] = lambda: None
        self._delay_ns = _DEFAULT_DELAY_NS
        self._is_idle = False
        self._is_stopping = False
        self._submitted: list[Callable[[], None]] = []
        self._wake_event = WakeEvent()  # ends a pause
        self._malformed: Counter[str] = Counter()
        self._unknown: Counter[int] = Counter()
        self._logged_messages: set[str] = set()

    # ---- called by whoever publishes ----

    def describe(self, attributes: Mapping[str, object]) -> None:
        """The attributes of this service's resource."""
        own = attributes.get(HOST_ID)
        self._own_host_id = own if isinstance(own, str) else ""

    def attach(self, processors: Any) -> None:
        """A provider's set of span processors has been found."""
        self._processor_sets.add(processors)
        if self._deferral.is_active:
            self._deferral.attach(processors)

    def listen(
        self, descriptor: int, on_closed: Callable[[], None], is_open: Callable[[], bool] = lambda: True
    ) -> None:
        """Take messages from this socket from now on.

        Args:
            descriptor: of the socket, which must stay until `close`.
            on_closed: called, on a thread of ours, when somebody else has closed it.
            is_open: whether the descriptor still stands for the socket. The application may have closed it and opened
                something else, which must not be read.

        Raises:
            OSError, RuntimeError: it cannot be read, or the process can make no more threads.
        """
        self.close()
        mailbox = self._make_mailbox(descriptor)
        if not is_open():
            raise OSError(EBADF, "the socket was closed meanwhile")
        self._mailbox = mailbox
        self._on_closed = on_closed
        reader_thread = Worker("inbox", lambda: self._read(mailbox))
        correlator_thread = Worker("correlator", lambda: self._correlate(mailbox))
        try:
            correlator_thread.start()
            self._threads = [correlator_thread]
            reader_thread.start()
            self._threads = [correlator_thread, reader_thread]
        except BaseException:
            self.close()
            raise
        if self._config.at_once:
            self._activate()

    def close(self) -> None:
        """Take no more messages; what waits stays."""
        mailbox = self._mailbox
        if mailbox is not None:
            mailbox.stop()  # first: a signal handler may raise at any moment
        threads, self._threads = self._threads, []
        self._mailbox = None
        self._wake_event.set()
        own = _thread.get_ident()
        for thread in threads:
            if thread.ident != own:
                thread.join(_JOIN_S)
        self._closed_mailbox_counts = self._received_totals(mailbox)

    def stop(self, timeout_s: float) -> None:
        """Forward all that waits, waiting for exporters as `SpanForwarder.drain_spans` says; then listen no more."""
        self._is_stopping = True  # profilers go on sending: none of that is to begin anew what ends here
        with self._guard.catching():
            self._deferral.detach(timeout_s)
        self.close()
        counts = self.counts()
        if counts.received:
            logger.debug("from host profilers: %s", counts)

    def hold(self, timeout_s: float) -> None:
        """See `SpanForwarder.hold`."""
        self._forwarder.hold(timeout_s)

    def release(self) -> None:
        """See `SpanForwarder.release`."""
        self._forwarder.release()

    def after_fork(self) -> None:
        """In a forked child, before anything else: the threads, the socket and what waits are the parent's."""
        self._mailbox = None
        self._closed_mailbox_counts = (0, 0)
        self._last_received = 0
        self._threads = []
        self._is_stopping = False
        self._submitted = []
        self._wake_event = WakeEvent()
        self._is_idle = False
        self._delay_ns = _DEFAULT_DELAY_NS
        self._malformed.clear()
        self._unknown.clear()
        self._transactions = Transactions(self._config.buffer_size)
        self._deferral.reset_after_fork(self._transactions)

    def resource(self, resource: Any) -> Any:
        """`resource`, with the ``host.id`` that the host profiler has said if it has none of its own."""
        return self._host_id.resource(resource)

    def counts(self) -> Counts:
        """What has come until now."""
        received, too_long = self._received_totals(self._mailbox)
        known = self._transactions
        return Counts(
            received,
            too_long,
            self._malformed.total(),
            self._unknown.total(),
            known.matched,
            known.unmatched,
            known.beyond,
            known.refused,
        )

    def _received_totals(self, mailbox: Any) -> tuple[int, int]:
        """Messages, and those of them that were too long."""
        received, too_long = (0, 0) if mailbox is None else mailbox.counts()
        return self._closed_mailbox_counts[0] + received, self._closed_mailbox_counts[1] + too_long

    # ---- called on the application's threads ----

    def _wake_if_idle(self) -> None:
        """A transaction waits."""
        if self._is_idle:
            self._is_idle = False
            mailbox = self._mailbox
            if mailbox is not None:
                mailbox.wake()

    def _submit(self, work: Callable[[], None]) -> bool:
        """Have `work` done on the thread that counts, once it has counted all that has come. False if there is none."""
        mailbox = self._mailbox
        if mailbox is None:
            return False
        self._submitted.append(work)
        mailbox.wake()
        self._wake_event.set()
        return True

    # ---- our threads ----

    def _read(self, mailbox: Any) -> None:
        if not mailbox.run() and self._mailbox is mailbox:
            with self._guard.catching():
                self._on_closed()

    def _correlate(self, mailbox: Any) -> None:
        while self._mailbox is mailbox:
            done = False
            with self._guard.catching():
                self._correlate_once(mailbox)
                done = True
            if not done:
                self._wake_event.wait(_MAX_PAUSE_S)  # what fails once may fail each time

    def _correlate_once(self, mailbox: Any) -> None:
        submitted, self._submitted = self._submitted, []
        try:
            messages = mailbox.take(0 if submitted else self._wait_s())
            self._is_idle = False
            began_ns = self._now_ns()
            # Until then messages were in time for what is forwarded below; beside busy threads that was a while ago.
            messages += mailbox.take(0)
            for message in messages:
                self._handle(message)
            took_s = (self._now_ns() - began_ns) / _NS_PER_S
        finally:
            for work in submitted:
                with self._guard.catching():
                    work()
        if self._mailbox is not mailbox:
            return
        self._forwarder.forward(began_ns - self._delay_ns)
        received, too_long = self._received_totals(mailbox)
        if too_long:
            self._log_once(
                logging.WARNING, "a message of a host profiler had more than 65,536 bytes and was discarded (said once)"
            )
        new_messages, self._last_received = received - self._last_received, received
        if new_messages:
            # However much is sent, it gets a tenth of a core: the mailbox fills, then the socket, and senders have to
            # wait. That many short turns cost more than few long ones is the reason for the least pause.
            self._wake_event.wait(min(max(9 * (took_s + new_messages * _RECEIVE_COST_S), _MIN_PAUSE_S), _MAX_PAUSE_S))

    def _wait_s(self) -> float:
        if self._forwarder.has_queued_spans:
            return 0
        self._is_idle = True
        first_ns = self._transactions.first_end_ns()
        if first_ns is None:
            return _IDLE_S
        self._is_idle = False
        left_s = (first_ns + self._delay_ns - self._now_ns()) / _NS_PER_S
        return max(left_s, _BATCH_INTERVAL_S if left_s > 0 else _MIN_PAUSE_S)

    def _handle(self, datagram: bytes) -> None:
        message = decode(datagram)
        if isinstance(message, TraceCorrelation):
            if self._activate():
                logger.info("a host profiler sends stack traces: transactions wait %s ms for them", self._delay_ms)
            self._transactions.count(*message)
        elif isinstance(message, ProfilerRegistration):
            self._handle_registration(message)
        elif isinstance(message, MalformedMessage):
            self._malformed[message.reason] += 1
            if self._malformed[message.reason] == 1:
                logger.debug("a message of a host profiler was discarded: %s", message.reason)
        else:
            self._count_unknown(message.message_type)

    def _count_unknown(self, message_type: int) -> None:
        kind = message_type
        if kind not in self._unknown and len(self._unknown) >= _MAX_KINDS:
            kind = _OTHER_KINDS
        self._unknown[kind] += 1
        if self._unknown[kind] == 1:
            logger.debug("a message of a host profiler was ignored: type %s", message_type)

    def _handle_registration(self, message: ProfilerRegistration) -> None:
        delay_ms = message.samples_delay_ms
        if delay_ms > _MAX_DELAY_MS:
            self._log_once(
                logging.WARNING,
                f"a host profiler says that it takes up to {delay_ms} ms to report; transactions wait"
                f" {_MAX_DELAY_MS} ms at most, and stack-trace ids on them may be incomplete",
            )
            delay_ms = _MAX_DELAY_MS
        self._delay_ns = delay_ms * 1_000_000 + _DELAY_MARGIN_NS
        own_host_id = self._own_host_id or self._host_id.value
        if message.host_id and own_host_id and own_host_id != message.host_id:
            self._warn_host_id_mismatch(own_host_id, message.host_id)
        elif message.host_id:
            self._host_id.value = message.host_id
        self._activate()
        self._log_once(
            logging.INFO,
            f"a host profiler has registered (host.id {_shorten(message.host_id) or 'not said'}): transactions wait"
            f" {self._delay_ms} ms for its stack traces",
        )
        if self._mailbox is not None:
            self._mailbox.wake()  # what waits may be due by the new delay

    @property
    def _delay_ms(self) -> int:
        return self._delay_ns // 1_000_000

    def _activate(self) -> bool:
        """Have transactions wait from now on. False if they do already, or are not to any more."""
        if self._deferral.is_active or self._is_stopping:
            return False
        self._deferral.is_active = True
        for processors in self._processor_sets:
            self._deferral.attach(processors)
        return True

    def _warn_host_id_mismatch(self, own_host_id: str, profiler_host_id: str) -> None:
        self._log_once(
            logging.WARNING,
            f"host.id is {_shorten(own_host_id)!r} here, and {_shorten(profiler_host_id)!r} for the host profiler;"
            " the former"
            " is kept, and what is derived from both (costs, CO2) will not match",
        )

    def _log_once(self, level: int, text: str) -> None:
        if text not in self._logged_messages and len(self._logged_messages) < _MAX_KINDS:
            self._logged_messages.add(text)
            logger.log(level, "%s", text)


def _shorten(host_id: str) -> str:
    """For log lines: a message may hold 64 KiB, and a setting may have said what is sent."""
    return redact(host_id[:_MAX_HOST_ID_LENGTH] + "…" if len(host_id) > _MAX_HOST_ID_LENGTH else host_id)
