"""Garbage collections as events, by way of `gc.callbacks`, which run on the collecting thread.

The tickers record them (`native/walker/collections.c`, `capture/portable_gc.py`). This module
registers the callback and converts their records to events.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress

from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent, RecordedEvent

GC_KIND = EventKind("gc", count=ValueType("collections", "count"), amount=ValueType("gc", "nanoseconds"))


class GcEventSource(EventSource):
    """The source of collections, which `ticker` records, whether it runs or not."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._callback = ticker.on_gc_event

    def start(self) -> None:
        """Register the callback."""
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Unregister the callback."""
        with suppress(ValueError):  # already stopped, or the list was cleared
            gc.callbacks.remove(self._callback)

    def drain(self) -> Sequence[RawEvent]:
        """Return the recorded collections as events."""
        return [_make_event(collection) for collection in self._ticker.drain_collections()]


def make_gc_source(config: Config, ticker: Ticker, native: bool) -> GcEventSource | None:
    """Return the source; None if it is off, or if this Python has no `gc.callbacks`."""
    return GcEventSource(ticker) if config.samples_gc(native=native) and hasattr(gc, "callbacks") else None


def _make_event(collection: RecordedEvent) -> RawEvent:
    labels = (("gc.generation", str(collection.details[0])),)  # text: readers drop a numeric 0
    event = Event(GC_KIND, labels, collection.event_count, collection.event_amount)
    return RawEvent(collection.time_ns, collection.thread, event)
