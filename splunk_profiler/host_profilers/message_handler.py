"""The effects of host profilers' messages: counted stacks, the delay of transactions, the host id.

Runs on the correlator thread, apart from `set_service_attributes` and what logs a mismatch of host ids.

Specification: Elastic universal profiling integration, "Profiler Registration Message".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from splunk_profiler.config.parsers import redact
from splunk_profiler.host_profilers.annotation import HOST_ID, HostId
from splunk_profiler.host_profilers.messages import MalformedMessage, ProfilerRegistration, TraceCorrelation, decode
from splunk_profiler.host_profilers.transactions import TransactionBuffer
from splunk_profiler.system.guard import OnceLog, logger

_NS_PER_MS = 1_000_000
_DEFAULT_DELAY_NS = 1_000 * _NS_PER_MS  # until a profiler has registered
_DELAY_MARGIN_NS = 20 * _NS_PER_MS
_MAX_DELAY_MS = 60_000
_MAX_KINDS = 64
_OTHER_KINDS = -1
_MAX_HOST_ID_LENGTH = 64


class MessageHandler:
    """The state that messages change. `activate` makes transactions wait from now on, for `delay_ns` each."""

    def __init__(self, activate: Callable[[], bool]) -> None:
        self.delay_ns = _DEFAULT_DELAY_NS
        self.host_id = HostId(self._warn_host_id_mismatch)
        self.malformed: Counter[str] = Counter()
        self.unknown: Counter[int] = Counter()
        self._activate = activate
        self._own_host_id = ""
        self.once_log = OnceLog()

    def set_service_attributes(self, attributes: Mapping[str, object]) -> None:
        """Take the host id from the attributes of the service's resource."""
        own = attributes.get(HOST_ID)
        self._own_host_id = own if isinstance(own, str) else ""

    def reset_after_fork(self) -> None:
        """Forget the parent's counts and delay in a forked child. The host stays the same."""
        self.delay_ns = _DEFAULT_DELAY_NS
        self.malformed.clear()
        self.unknown.clear()

    def handle(self, datagram: bytes, transactions: TransactionBuffer) -> None:
        """Apply one message."""
        message = decode(datagram)
        if isinstance(message, TraceCorrelation):
            if self._activate():
                logger.info(
                    "a host profiler sends stack traces: transactions wait %s ms for them", self.delay_ns // _NS_PER_MS
                )
            transactions.count(*message)
        elif isinstance(message, ProfilerRegistration):
            self._register(message)
        elif isinstance(message, MalformedMessage):
            self.malformed[message.reason] += 1
            if self.malformed[message.reason] == 1:
                logger.debug("a message of a host profiler was discarded: %s", message.reason)
        else:
            self._count_unknown(message.message_type)

    def _count_unknown(self, message_type: int) -> None:
        is_known = message_type in self.unknown or len(self.unknown) < _MAX_KINDS
        kind = message_type if is_known else _OTHER_KINDS
        self.unknown[kind] += 1
        if self.unknown[kind] == 1:
            logger.debug("a message of a host profiler was ignored: type %s", message_type)

    def _register(self, message: ProfilerRegistration) -> None:
        delay_ms = message.samples_delay_ms
        if delay_ms > _MAX_DELAY_MS:
            self.once_log.log(
                f"a host profiler says that it takes up to {delay_ms} ms to report; transactions wait"
                f" {_MAX_DELAY_MS} ms at most, and stack-trace ids on them may be incomplete"
            )
            delay_ms = _MAX_DELAY_MS
        self.delay_ns = delay_ms * _NS_PER_MS + _DELAY_MARGIN_NS
        own_host_id = self._own_host_id or self.host_id.value
        if message.host_id and own_host_id and own_host_id != message.host_id:
            self._warn_host_id_mismatch(own_host_id, message.host_id)
        elif message.host_id:
            self.host_id.value = message.host_id
        self._activate()
        self.once_log.log(
            f"a host profiler has registered (host.id {_shorten(message.host_id) or 'not said'}): transactions wait"
            f" {self.delay_ns // _NS_PER_MS} ms for its stack traces",
            logging.INFO,
        )

    def _warn_host_id_mismatch(self, own_host_id: str, profiler_host_id: str) -> None:
        self.once_log.log(
            f"host.id is {_shorten(own_host_id)!r} here, and {_shorten(profiler_host_id)!r} for the host profiler;"
            " the former is kept, and what is derived from both (costs, CO2) will not match"
        )


def _shorten(host_id: str) -> str:
    """Return `host_id` for log lines: it may be 64 KiB long or hold the secret of a setting."""
    return redact(host_id[:_MAX_HOST_ID_LENGTH] + "…" if len(host_id) > _MAX_HOST_ID_LENGTH else host_id)
