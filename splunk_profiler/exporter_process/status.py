"""The status of a host of an exporter process: what became of its records, and the question for it.

The session in the exporter process makes it; `ask` runs in a command. It contains no secrets.
"""

from __future__ import annotations

import json
import os
import socket
from typing import IO, Any, NamedTuple

from splunk_profiler.config.parsers import ProfilerError
from splunk_profiler.exporter_process.loop_blockers import LoopBlocker
from splunk_profiler.exporter_process.transport import (
    CHALLENGE_BYTES,
    LENGTH,
    MAX_MESSAGE_BYTES,
    QUESTION,
    REFUSAL,
    prove_asker,
    prove_exporter,
)
from splunk_profiler.model import RecordCounters
from splunk_profiler.system import clocks

_MAX_TEXT = 1000
_OPTIONAL = ("delivered_age_s", "failed_age_s")
_TEXTS = ("destination", "failure", "function", "task", "endpoint")
_MAX_NUMBER = 1 << 64
_TIMEOUT_S = 20.0  # beside many busy processes the exporter may have no processor for seconds


class StatusError(ProfilerError):
    """Error for an exporter that gives no status; the message says why."""


class HostStatus(NamedTuple):
    """The state of a host's records in the exporter process.

    Attributes:
        age_s: time since the host has connected; all numbers are of that time.
        has_profiles: True if its records are profiles.
        lost_snapshots: snapshots that the host could not send.
        destination: destination and its setting, in words.
        delivered_age_s: time since the last delivery; None if there was none.
        failed_age_s: time since records were last not delivered, or refused, and `failure` why.
        period_ms: period of the schedule at the last snapshot; 0 if there were none.
        configured_period_ms: the same as it is configured.
        loop_blockers: the functions that blocked the event loop for longest.
    """

    age_s: float
    has_profiles: bool
    counters: RecordCounters
    lost_snapshots: int
    destination: str
    delivered_age_s: float | None
    failed_age_s: float | None
    failure: str
    period_ms: int
    configured_period_ms: int
    loop_blockers: list[LoopBlocker]

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        blockers = [each._asdict() for each in self.loop_blockers]
        return {**self._asdict(), "counters": self.counters._asdict(), "loop_blockers": blockers}

    def encode(self) -> bytes:
        """Return the answer of the exporter, texts cut short."""
        texts = {"destination": self.destination[:_MAX_TEXT], "failure": self.failure[:_MAX_TEXT]}
        # As UTF-8: an escaped character may take twelve bytes, and the answer has one message.
        return json.dumps({**self.to_dict(), **texts}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(answer: bytes) -> HostStatus:
    """Return the status in an answer.

    Raises:
        StatusError: the answer has none.
    """
    if not answer:
        raise StatusError("it knows nothing of this process, which may be new or about to end")
    try:
        values = json.loads(answer)
        counters = RecordCounters(**_check(values.pop("counters")))
        blockers = [LoopBlocker(**_check(each)) for each in values.pop("loop_blockers")]
        return HostStatus(**_check(values), counters=counters, loop_blockers=blockers)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StatusError("its answer is that of another version of splunk-profiler") from None


def _check(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values; `ValueError` unless each is a text or a number, as its name says."""
    for name, value in values.items():
        if name in _TEXTS:
            is_usable = isinstance(value, str)
        elif value is None:
            is_usable = name in _OPTIONAL
        else:
            is_usable = 0 <= value < _MAX_NUMBER
        if not is_usable:
            raise ValueError(name)
    return values


def ask(token: str, name: bytes, inode: int, timeout_s: float = _TIMEOUT_S) -> HostStatus:
    """Ask the exporter with this token and name of its socket for the status of a host, by its end of the connection.

    Raises:
        StatusError: it gives none.
    """
    from splunk_profiler.export.deadline_stream import DeadlineStream  # noqa: PLC0415  # with OpenSSL: not for exporters

    deadline_s = clocks.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(name)
            challenge = os.urandom(CHALLENGE_BYTES)
            connection.sendall(challenge)
            with DeadlineStream(connection, deadline_s).makefile("rb") as stream:
                proof = _read_message(stream)
                if proof == REFUSAL:  # of an earlier version, which has no room
                    raise StatusError(proof.decode())
                if proof != prove_exporter(token, challenge):
                    raise StatusError("it does not prove that it is an exporter")
                connection.sendall(prove_asker(token, challenge) + QUESTION.pack(inode))
                return decode(_read_message(stream))
    except TimeoutError:
        raise StatusError("it does not answer") from None
    except OSError as error:
        raise StatusError(f"it cannot be asked: {error.strerror}") from None


def _read_message(stream: IO[bytes]) -> bytes:
    header = stream.read(LENGTH.size)
    if len(header) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        message = stream.read(min(length, MAX_MESSAGE_BYTES))
        if len(message) == length:
            return message
    raise StatusError("it refuses the question, as other versions of splunk-profiler do")
