"""A kind of event that there is not, in one file, as the next one would be: objects that a program says it has made.

Its data type is another one than the timer's. Used by tests in their own process and by a target in its.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry import context

from splunk_profiler.capture.events.interface import EventSource, RegisteredSource
from splunk_profiler.capture.walker import Ticker, choose_walker, make_ticker
from splunk_profiler.config import Config
from splunk_profiler.model import DataType, Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent
from splunk_profiler.user_labels.labels import CURRENT_LABELS

KIND = EventKind("object", ValueType("objects", "count"), ValueType("space", "bytes"), data_type=DataType.ALLOCATION)


class Objects:
    """Makes objects; notices that from its start to its stop."""

    def __init__(self) -> None:
        self._ticker = make_ticker(choose_walker(), None, lambda _: None, 100)
        self._is_recording = False
        self._recorded: list[RawEvent] = []

    def make(self, what: str, count: int, size: int) -> list[bytearray]:
        """So many objects of this size."""
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
        """See `EventSource.start`."""
        self._is_recording = True

    def stop(self) -> None:
        """See `EventSource.stop`."""
        self._is_recording = False

    def drain(self) -> Sequence[RawEvent]:
        """See `EventSource.drain`."""
        recorded, self._recorded = self._recorded, []
        return recorded


def registered(objects: Objects) -> RegisteredSource:
    """The kind, with `objects` as its source where memory is to be profiled."""

    def make(config: Config, ticker: Ticker, *, native: bool) -> EventSource | None:  # noqa: ARG001
        return objects if config.memory_enabled else None

    return RegisteredSource(KIND, make)
