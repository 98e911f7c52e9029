"""What samples are taken at besides the timer: the kinds of events that there are, and the sources of those wanted.

A source notices events on the application's threads, with the stack of the thread, and keeps them until the sampling
worker's thread comes for them. `start` and `stop` run on the threads that start and stop the profiler. Imports the
walkers' contract, the settings' type and the model, never OpenTelemetry, a format or a sink.

An event of another kind is a file in this package and its line in `REGISTERED_SOURCES`. What else has to know of it
(profiles and their values, records and their attributes) takes that from its `EventKind`.
"""

from __future__ import annotations

from collections.abc import Iterable

from splunk_profiler.capture.events import collector
from splunk_profiler.capture.events.interface import EventSource, RegisteredSource
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import EventKind
from splunk_profiler.raw import RawEvent
from splunk_profiler.system.guard import Guard

REGISTERED_SOURCES: tuple[RegisteredSource, ...] = (collector.GC_SOURCE,)


def registered_kinds() -> tuple[EventKind, ...]:
    """All kinds, wanted or not."""
    return tuple(each.kind for each in REGISTERED_SOURCES)


class EventSources:
    """Several sources as one, none of which can keep another from its work.

    Args:
        sources: with the kinds of event that they notice.
    """

    def __init__(self, sources: Iterable[tuple[EventKind, EventSource]] = ()) -> None:
        self._sources = [(source, Guard(f"noticing events ({kind.name})")) for kind, source in sources]

    def start(self) -> None:
        """See `EventSource.start`."""
        for source, guard in self._sources:
            with guard.catching():
                source.start()

    def stop(self) -> None:
        """See `EventSource.stop`."""
        for source, guard in self._sources:
            with guard.catching():
                source.stop()

    def drain(self) -> list[RawEvent]:
        """See `EventSource.drain`; the oldest first of each."""
        drained: list[RawEvent] = []
        for source, guard in self._sources:
            with guard.catching():
                drained += source.drain()
        return drained


def make_sources(
    config: Config, ticker: Ticker, *, native: bool, registered: Iterable[RegisteredSource] | None = None
) -> EventSources:
    """The sources of all kinds that are wanted: of none where there are no profiles of all threads.

    Args:
        config, ticker, native: see `SourceFactory`.
        registered: the kinds that there are; by default those of `REGISTERED_SOURCES`.
    """
    if not (config.enabled and config.sends_profiles):  # records of samples have no place for events
        return EventSources()
    candidates = REGISTERED_SOURCES if registered is None else registered
    sources = []
    for each in candidates:
        with Guard(f"what notices events ({each.kind.name})").catching():
            source = each.make_source(config, ticker, native=native)
            if source is not None:
                sources.append((each.kind, source))
    return EventSources(sources)
