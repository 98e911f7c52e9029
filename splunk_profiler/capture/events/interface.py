"""The interface of event sources. Never imports OpenTelemetry, a format or a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import EventKind
from splunk_profiler.raw import RawEvent


class EventSource(Protocol):
    """A recorder of events from `start` to `stop`. Its methods do not block."""

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording and leave nothing behind in the interpreter. Idempotent; also in a forked child."""

    def drain(self) -> Sequence[RawEvent]:
        """Return the events since the last call, oldest first, at most a few hundred."""


class RegisteredSource(NamedTuple):
    """A kind of event and its source.

    Attributes:
        kind: description of the kind.
        make_source: called with the settings, the ticker, which may run already or never, and True if
            it is the native one. Returns None where the kind is off or not possible.
    """

    kind: EventKind
    make_source: Callable[[Config, Ticker, bool], EventSource | None]
