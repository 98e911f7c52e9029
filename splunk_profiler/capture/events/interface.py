"""What a kind of event is made of: its description, and what notices such events.

Never imports OpenTelemetry, a format or a sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import EventKind
from splunk_profiler.raw import RawEvent


class EventSource(Protocol):
    """Notices events from `start` to `stop`. None of its methods waits."""

    def start(self) -> None:
        """Begin to notice."""

    def stop(self) -> None:
        """Notice no more and leave nothing behind in the interpreter; also twice, and in a forked child."""

    def drain(self) -> Sequence[RawEvent]:
        """What has been noticed since the last call, oldest first, at most a few hundred."""


class SourceFactory(Protocol):
    """Makes the source of a kind."""

    def __call__(self, config: Config, ticker: Ticker, *, native: bool) -> EventSource | None:
        """The source; None where the settings, the walker or the interpreter do not want it or cannot have it.

        Args:
            config: the settings, with which profiles of all threads are made.
            ticker: of one life of sampling, with what it can notice. It may run already, or never.
            native: whether it is the native one.
        """


@dataclass(frozen=True, slots=True)
class RegisteredSource:
    """A kind of event.

    Attributes:
        kind: what all others have to know of it.
        make_source: makes its source.
    """

    kind: EventKind
    make_source: SourceFactory
