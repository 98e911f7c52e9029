"""Events that trigger samples besides the timer: their registered kinds and the sources in use.

Never imports OpenTelemetry, a format or a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from splunk_profiler.capture.events.garbage_collections import GC_KIND, make_gc_source
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import EventKind
from splunk_profiler.raw import RawEvent
from splunk_profiler.system.guard import Guard


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
        make_source: called with the settings, the ticker, which may run already or never, and True if
            it is the native one. Returns None where the kind is off or not possible.
    """

    kind: EventKind
    make_source: Callable[[Config, Ticker, bool], EventSource | None]


REGISTERED_SOURCES: tuple[RegisteredSource, ...] = (RegisteredSource(GC_KIND, make_gc_source),)


def registered_kinds() -> tuple[EventKind, ...]:
    """Return all registered kinds, in use or not."""
    return tuple(each.kind for each in REGISTERED_SOURCES)


class EventSources:
    """Several sources as one; an error in one does not affect the others."""

    def __init__(self, sources: Iterable[tuple[EventKind, EventSource]]) -> None:
        self._sources = [(source, Guard(f"noticing events ({kind.name})")) for kind, source in sources]

    def start(self) -> None:
        """Start all sources."""
        for source, guard in self._sources:
            with guard.catching():
                source.start()

    def stop(self) -> None:
        """Stop all sources."""
        for source, guard in self._sources:
            with guard.catching():
                source.stop()

    def drain(self) -> list[RawEvent]:
        """Return the events of all sources, oldest first of each."""
        drained: list[RawEvent] = []
        for source, guard in self._sources:
            with guard.catching():
                drained += source.drain()
        return drained


def make_sources(config: Config, ticker: Ticker, *, native: bool) -> EventSources:
    """Make the sources of the kinds that are on; none without profiles of all threads."""
    sources = []
    if config.enabled and config.sends_profiles:  # records of samples have no place for events
        for kind, make_source in REGISTERED_SOURCES:
            with Guard(f"what notices events ({kind.name})").catching():
                source = make_source(config, ticker, native)
                if source is not None:
                    sources.append((kind, source))
    return EventSources(sources)
