"""What samples are taken at, besides the timer: the interface of an event, and the collector's work as the first one.

A source notices events on the application's threads, with the stack of the thread, and keeps them until the sampling
worker's thread comes for them. `start` and `stop` run on the threads that start and stop the profiler. Imports the
walkers' contract and the model, never settings, OpenTelemetry, a format or a sink.

An event of another kind (allocations) is a file with a source of its own, a line in `sampling`, and its two values in
`formats/pprof.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from splunk_profiler.capture import RawCollection, RawEvent, Ticker
from splunk_profiler.model import Event

GC = "gc"


class EventSource(Protocol):
    """Notices events from `start` to `stop`. None of its methods waits."""

    def start(self) -> None:
        """Begin to notice."""

    def stop(self) -> None:
        """Notice no more and leave nothing behind in the interpreter; also twice, and in a forked child."""

    def drain(self) -> Sequence[RawEvent]:
        """What has been noticed since the last call, oldest first, at most a few hundred."""


class NoEvents:
    """Where none are wanted."""

    def start(self) -> None:
        """See `EventSource.start`."""

    def stop(self) -> None:
        """See `EventSource.stop`."""

    def drain(self) -> Sequence[RawEvent]:
        """See `EventSource.drain`."""
        return ()


class CollectorEvents:
    """Collections of garbage, by way of `gc.callbacks`, which CPython calls on the thread that a collection is for.

    Args:
        ticker: notes them, whether it runs or not.
    """

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._callback = ticker.note_collection

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
        return [_event(collection) for collection in self._ticker.drain_collections()]


def collector_events(ticker: Ticker) -> EventSource:
    """The collector's, where it tells of itself: not every implementation of Python has a `gc.callbacks`."""
    return CollectorEvents(ticker) if hasattr(gc, "callbacks") else NoEvents()


def _event(collection: RawCollection) -> RawEvent:
    labels = (("gc.generation", str(collection.generation)),)  # a text: readers leave out a number that is 0
    event = Event(GC, labels, collection.stands_for, collection.duration_ns)
    return RawEvent(collection.time_ns, collection.thread, event)
