"""A test kind of event in one file, like a new kind would be: objects that a program reports.

Its data type differs from the timer's. Used by tests and by a target.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry import context

from splunk_profiler.capture.events import RegisteredSource
from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.capture.walker import Ticker, choose_walker, make_ticker
from splunk_profiler.config import Config
from splunk_profiler.model import DataType, Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent
from splunk_profiler.user_labels.labels import CURRENT_LABELS

KIND = EventKind("object", ValueType("objects", "count"), ValueType("space", "bytes"), data_type=DataType.ALLOCATION)


class Objects(EventSource):
    """The source of the events; active between start and stop."""

    def __init__(self) -> None:
        self._ticker = make_ticker(choose_walker(), None, lambda _: None, 100)
        self._is_recording = False
        self._recorded: list[RawEvent] = []

    def make(self, what: str, count: int, size: int) -> list[bytearray]:
        """Make so many objects of this size."""
        if self._is_recording:
            self._ticker.capture()
            (raw,) = self._ticker.drain(0)
            seen = next(each for each in raw.threads if each.ident == threading.get_ident())
            raw_thread: Any = seen  # a named tuple, whichever walker made it
            here = raw_thread._replace(context=context.get_current(), labels=CURRENT_LABELS.get(None))
            event = Event(KIND, (("source.event.object", what),), count, count * size)
            self._recorded.append(RawEvent(raw.time_ns, here, event))
        return [bytearray(size) for _ in range(count)]

    def start(self) -> None:
        """Start recording."""
        self._is_recording = True

    def stop(self) -> None:
        """Stop recording."""
        self._is_recording = False

    def drain(self) -> Sequence[RawEvent]:
        """Return the recorded events and forget them."""
        recorded, self._recorded = self._recorded, []
        return recorded


def registered(objects: Objects) -> RegisteredSource:
    """Return the registration of the kind; `objects` is its source if memory is profiled."""

    def make(config: Config, _ticker: Ticker, _native: bool) -> EventSource | None:
        return objects if config.memory_enabled else None

    return RegisteredSource(KIND, make)
