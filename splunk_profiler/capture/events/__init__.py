"""Events that trigger samples besides the timer: their registered kinds and the sources in use."""

from __future__ import annotations

from collections.abc import Iterable

from splunk_profiler.capture.events.collector import GC_KIND, make_gc_source
from splunk_profiler.capture.events.interface import EventSource, RegisteredSource
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import EventKind
from splunk_profiler.raw import RawEvent
from splunk_profiler.system.guard import Guard

REGISTERED_SOURCES: tuple[RegisteredSource, ...] = (RegisteredSource(GC_KIND, make_gc_source),)


def registered_kinds() -> tuple[EventKind, ...]:
    """Return all registered kinds, in use or not."""
    return tuple(each.kind for each in REGISTERED_SOURCES)


class EventSources:
    """Several sources as one; an error in one does not affect the others."""

    def __init__(self, sources: Iterable[tuple[EventKind, EventSource]] = ()) -> None:
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
