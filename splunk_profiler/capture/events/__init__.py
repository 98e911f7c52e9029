"""Events that trigger samples besides the timer: their registered kinds and the sources in use.

Never imports OpenTelemetry, a format or a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from splunk_profiler.capture.events.allocations import ALLOCATION_KIND, make_allocation_source
from splunk_profiler.capture.events.blocked_loops import LOOP_BLOCKED, make_blocked_loop_source
from splunk_profiler.capture.events.exceptions import EXCEPTION_KIND, make_exception_source
from splunk_profiler.capture.events.garbage_collections import GC_KIND, make_gc_source
from splunk_profiler.capture.events.lock_holders import LOCK_KIND, make_lock_holder_source
from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.capture.events.waiting_tasks import TASK_KIND, make_task_source
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import DataType, EventKind
from splunk_profiler.raw import RawEvent
from splunk_profiler.stream.records import FreedBlocksRecord
from splunk_profiler.system.guard import Guard


class RegisteredSource(NamedTuple):
    """A kind of event and its source.

    Attributes:
        make_source: called with the settings, the ticker, which may run already or never, and True if
            it is the native one. Returns None where the kind is off or not possible.
        is_listed: called with the settings; returns True if profiles have values of the kind, in use or not.
    """

    kind: EventKind
    make_source: Callable[[Config, Ticker, bool], EventSource | None]
    is_listed: Callable[[Config], bool] = lambda _config: True


REGISTERED_SOURCES: tuple[RegisteredSource, ...] = (
    RegisteredSource(GC_KIND, make_gc_source),
    RegisteredSource(LOCK_KIND, make_lock_holder_source),
    RegisteredSource(TASK_KIND, make_task_source, lambda config: config.max_tasks > 0),
    RegisteredSource(EXCEPTION_KIND, make_exception_source, lambda config: config.samples_exceptions),
    RegisteredSource(ALLOCATION_KIND, make_allocation_source, lambda config: config.memory_enabled),
    RegisteredSource(LOOP_BLOCKED, make_blocked_loop_source),
)


def registered_kinds(config: Config) -> tuple[EventKind, ...]:
    """Return the kinds that profiles have values for with these settings, in use or not."""
    return tuple(each.kind for each in REGISTERED_SOURCES if each.is_listed(config))


class EventSources:
    """Several sources as one; an error in one does not affect the others."""

    def __init__(self, sources: Iterable[tuple[EventKind, EventSource]]) -> None:
        self._sources = [(source, Guard(f"recording events ({kind.name})")) for kind, source in sources]

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

    def slow_down(self, ratio: float) -> None:
        """Have sources that cost much record less often by this ratio, of at least 1, than at the start."""
        for source, guard in self._sources:
            with guard.catching():
                source.slow_down(ratio)

    def drain(self) -> list[RawEvent | FreedBlocksRecord]:
        """Return the events of all sources, oldest first of each."""
        drained: list[RawEvent | FreedBlocksRecord] = []
        for source, guard in self._sources:
            with guard.catching():
                drained += source.drain()
        return drained


def make_sources(config: Config, ticker: Ticker, *, native: bool) -> EventSources:
    """Make the sources of the kinds that are on; none unless all threads are sampled."""
    sources = []
    if config.enabled:
        for kind, make_source, _ in REGISTERED_SOURCES:
            if kind.data_type is DataType.CPU and not config.sends_profiles:
                continue  # records of samples have no place for it
            with Guard(f"starting to record events ({kind.name})").catching():
                source = make_source(config, ticker, native)
                if source is not None:
                    sources.append((kind, source))
    return EventSources(sources)
