"""The reader of a stream: bytes to captures. It refuses what it does not know, and holds bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from splunk_profiler.model import DataType, Event, EventKind, Frame, SpanRef, Stack, Thread, ValueType
from splunk_profiler.stream import records
from splunk_profiler.stream.captured import (
    CapturedEvent,
    CapturedSnapshot,
    CapturedThread,
    CaptureEnded,
    CapturesLost,
    EndpointNamed,
    Item,
    ProcessStarted,
    ResourceChanged,
    StartTime,
    ThreadState,
    TraceEnded,
    TraceSelected,
)
from splunk_profiler.stream.codec import RecordDecoder, StreamError
from splunk_profiler.stream.records import CAPACITY, COMPLETE, FOCUSED, ThreadEntry
from splunk_profiler.system.printable import printable

Labels = tuple[tuple[str, str], ...]
_T = TypeVar("_T")
_MAX_DEFINITIONS = 1 << 20  # of one kind, from one snapshot to the next


class _Definitions(Generic[_T]):
    """The valid definitions of one kind, by number."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._capacity = CAPACITY[kind]
        self._values: dict[int, _T] = {}  # oldest first

    def add(self, number: int, value: _T) -> None:
        """Define a number, or define it anew."""
        self._values.pop(number, None)
        if len(self._values) >= _MAX_DEFINITIONS:
            raise StreamError(f"more than {_MAX_DEFINITIONS} definitions of a {self._kind}, and no snapshot")
        self._values[number] = value

    def trim(self) -> None:
        """Drop the oldest definitions."""
        for number in list(islice(self._values, max(len(self._values) - self._capacity, 0))):
            del self._values[number]

    def get(self, number: int) -> _T | None:
        """Return a definition, or None for a number that is new."""
        return self._values.get(number)

    def clear(self) -> None:
        """Drop all definitions."""
        self._values.clear()

    def __getitem__(self, number: int) -> _T:
        try:
            return self._values[number]
        except KeyError:
            raise StreamError(f"{self._kind} {number} is not defined") from None


class StreamReader:
    """Turns the bytes of one stream into captures, in pieces of any size.

    A stream that cannot be read raises `StreamError`, and cannot be read on.
    """

    def __init__(self) -> None:
        self._decoder = RecordDecoder()
        self._frames: _Definitions[Frame] = _Definitions("frame")
        self._stacks: _Definitions[Stack] = _Definitions("stack")
        self._threads: _Definitions[CapturedThread] = _Definitions("thread")
        self._spans: _Definitions[SpanRef] = _Definitions("span")
        self._labels: _Definitions[Labels] = _Definitions("label set")
        self._kinds: _Definitions[EventKind] = _Definitions("kind")
        self._all = (self._frames, self._stacks, self._threads, self._spans, self._labels, self._kinds)
        self._texts: dict[str, str] = {}  # one object for each text of a frame
        self._read: dict[type[Any], Callable[[Any], Item | None]] = {
            records.StartRecord: self._read_start,
            records.ResourceRecord: lambda one: ResourceChanged(
                bool(one.is_final), _json_object(one.attributes), one.schema_url
            ),
            records.FrameRecord: self._add_frame,
            records.StackRecord: self._add_stack,
            records.ThreadRecord: self._add_thread,
            records.SpanRecord: self._add_span,
            records.LabelsRecord: self._add_labels,
            records.EventKindRecord: self._add_kind,
            records.SnapshotRecord: self._read_snapshot,
            records.EventRecord: self._read_event,
            records.EndpointRecord: lambda one: EndpointNamed(*one),
            records.TraceRecord: lambda one: TraceSelected(*one),
            records.TraceEndRecord: lambda one: TraceEnded(*one),
            records.LostRecord: lambda one: CapturesLost(*one),
            records.EndRecord: lambda one: CaptureEnded(*one),
        }

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of a record that is not complete yet: a stream that ends there was cut off."""
        return self._decoder.pending_bytes

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield what the records say that `data` completes.

        Raises:
            StreamError: the bytes are no stream of a version that is known here.
        """
        for record in self._decoder.feed(data):
            try:
                item = self._read[type(record)](record)
            except StreamError as error:
                raise StreamError(f"{type(record).__name__}: {error}") from None
            if isinstance(record, records.TRIMMING):
                for known in self._all:
                    known.trim()
            if item is not None:
                yield item

    def _read_start(self, record: records.StartRecord) -> ProcessStarted:
        for known in self._all:
            known.clear()  # the stream may begin anew
        settings = _json_object(record.settings)
        return ProcessStarted(record.pid, record.time_ns, record.all_period_ns, record.focused_period_ns, settings)

    def _add_frame(self, record: records.FrameRecord) -> None:
        namespace, function, file = map(self._share, record[3:])
        self._frames.add(record.id, Frame(namespace, function, file, record.line or None, record.first_line))

    def _share(self, text: str) -> str:
        """Return one object for equal texts, safe to print."""
        shared = self._texts.get(text)
        if shared is None:
            if len(self._texts) >= 2 * CAPACITY["frame"]:
                self._texts.clear()
            shared = self._texts[text] = printable(text)
        return shared

    def _add_stack(self, record: records.StackRecord) -> None:
        frames = tuple(map(self._frames.__getitem__, record.frames))
        self._stacks.add(record.id, Stack(frames, truncated=bool(record.truncated)))

    def _add_thread(self, record: records.ThreadRecord) -> None:
        thread = Thread(record.id, record.name, record.ident, record.native_id)
        known = self._threads.get(record.id)
        if known is not None:
            known.thread = thread
        else:
            start = StartTime(record.earliest_start_ns, record.latest_start_ns) if record.latest_start_ns else None
            known = CapturedThread(thread, start)
        self._threads.add(record.id, known)

    def _add_span(self, record: records.SpanRecord) -> None:
        self._spans.add(record.id, SpanRef(*record[1:]))

    def _add_labels(self, record: records.LabelsRecord) -> None:
        names, values = record.texts[::2], record.texts[1::2]
        if len(names) != len(values):
            raise StreamError("a name has no value")
        self._labels.add(record.id, tuple(zip(names, values, strict=True)))

    def _add_kind(self, record: records.EventKindRecord) -> None:
        try:
            data_type = DataType(record.data_type)
        except ValueError:
            raise StreamError(f"{record.data_type!r} is no type of data") from None
        count, amount = ValueType(record.count_name, record.count_unit), ValueType(*record[4:6])
        self._kinds.add(record.id, EventKind(record.name, count, amount, data_type))

    def _read_snapshot(self, record: records.SnapshotRecord) -> CapturedSnapshot:
        if record.scope > FOCUSED:
            raise StreamError(f"the unknown scope {record.scope}")
        return CapturedSnapshot(
            *record[:6],
            record.scope == FOCUSED,
            record.scope == COMPLETE,
            [self._thread_state(entry) for entry in record.threads],
            record.ended,
        )

    def _thread_state(self, entry: ThreadEntry) -> ThreadState:
        thread, stack, span, labels, cpu_ns, state, nice = entry
        return ThreadState(
            self._threads[thread],
            self._stacks[stack],
            self._spans[span] if span else None,
            self._labels[labels] if labels else (),
            cpu_ns,
            None if state < 0 else state,
            nice,
        )

    def _read_event(self, record: records.EventRecord) -> CapturedEvent:
        entry = ThreadEntry(record.thread, record.stack, record.span, record.labels, 0, -1, 0)
        labels = tuple(_json_object(record.event_labels).items())
        if any(type(value) not in (str, int) for _, value in labels):
            raise StreamError("a label of an event is neither text nor number")
        event = Event(self._kinds[record.kind], labels, record.event_count, record.event_amount)
        return CapturedEvent(record.time_ns, record.instant_ns, self._thread_state(entry), event)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StreamError("a field is no JSON object")
    return value
