"""Collections of garbage: by way of `gc.callbacks`, which CPython calls on the thread that a collection is for.

The walkers' tickers do what happens there (`native/walker/collections.c`, `capture/portable_gc.py`); this says when
they are called, and makes events of what they have kept.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress

from splunk_profiler.capture.events.interface import EventSource, RegisteredSource
from splunk_profiler.capture.walker import Ticker
from splunk_profiler.config import Config
from splunk_profiler.model import Event, EventKind, ValueType
from splunk_profiler.raw import RawCollection, RawEvent

GC_KIND = EventKind("gc", count=ValueType("collections", "count"), amount=ValueType("gc", "nanoseconds"))


class GcEventSource:
    """The source of them.

    Args:
        ticker: notes them, whether it runs or not.
    """

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._callback = ticker.on_gc_event

    def start(self) -> None:
        """See `EventSource.start`."""
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """See `EventSource.stop`."""
        with suppress(ValueError):  # stopped already, or somebody has emptied the list
            gc.callbacks.remove(self._callback)

    def drain(self) -> Sequence[RawEvent]:
        """See `EventSource.drain`."""
        return [_make_event(collection) for collection in self._ticker.drain_collections()]


def make_gc_source(config: Config, ticker: Ticker, *, native: bool) -> EventSource | None:
    """See `SourceFactory`: not every implementation of Python has a `gc.callbacks`."""
    return GcEventSource(ticker) if config.samples_gc(native=native) and hasattr(gc, "callbacks") else None


GC_SOURCE = RegisteredSource(GC_KIND, make_gc_source)


def _make_event(collection: RawCollection) -> RawEvent:
    labels = (("gc.generation", str(collection.generation)),)  # a text: readers leave out a number that is 0
    event = Event(GC_KIND, labels, collection.collection_count, collection.duration_ns)
    return RawEvent(collection.time_ns, collection.thread, event)
