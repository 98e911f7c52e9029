"""The reader of a stream: bytes to captures. It refuses what it does not know, and holds bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from splunk_profiler.model import DataType, Event, EventKind, Frame, SpanRef, Stack, ValueType
from splunk_profiler.samples import Thread
from splunk_profiler.stream import records
from splunk_profiler.stream.captured import (
    CapturedEvent,
    CapturedSnapshot,
    CapturedThread,
    Item,
    ProcessStarted,
    ResourceChanged,
    StartTime,
    ThreadState,
)
from splunk_profiler.stream.codec import RecordDecoder, StreamError, maker
from splunk_profiler.stream.records import CAPACITY, COMPLETE, FOCUSED, ThreadEntry, count_oldest
from splunk_profiler.system.printable import printable

Labels = tuple[tuple[str, str], ...]
_T = TypeVar("_T")
_MAX_MEMORY_BYTES = 128 << 20  # of all kinds; 33 threads with stacks of 43 frames take less than 1 MiB
_MAX_SHARED_BYTES = 16 << 20
_MAX_NS = (1 << 63) - 1  # of pprof
_DEFINITION_BYTES, _LABEL_BYTES, _REFERENCE_BYTES = 128, 64, 8  # beside texts


class _MemoryEstimate:
    """An estimate of the memory of a reader's definitions."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, size: int) -> None:
        """Count a definition."""
        self._bytes += _DEFINITION_BYTES + size
        if self._bytes > _MAX_MEMORY_BYTES:
            raise StreamError(f"definitions of more than {_MAX_MEMORY_BYTES >> 20} MiB")

    def remove(self, size: int) -> None:
        """Remove a definition."""
        self._bytes -= _DEFINITION_BYTES + size

    def clear(self) -> None:
        """Remove all definitions."""
        self._bytes = 0


_new_state = maker(ThreadState)


class _Definitions(dict[int, _T]):
    """The valid definitions of one kind, by number, oldest first.

    Args:
        size_of: returns the size of a definition's texts and references in memory.
        max_bytes: of those that stay valid.
    """

    __slots__ = ("_bytes", "_capacity", "_kind", "_max_bytes", "_memory", "_size_of")

    def __init__(
        self, kind: str, memory: _MemoryEstimate, size_of: Callable[[_T], int], max_bytes: int = _MAX_MEMORY_BYTES
    ) -> None:
        self._memory = memory
        self._bytes = 0
        self._kind = kind
        self._capacity = CAPACITY[kind]
        self._max_bytes = max_bytes
        self._size_of = size_of

    def add(self, number: int, value: _T) -> None:
        """Define a number, or define it anew."""
        self.drop(number)
        size = self._size_of(value)
        self._bytes += size
        self._memory.add(size)
        self[number] = value

    def drop(self, number: int) -> _T | None:
        """Drop a definition and return it; None if there is none."""
        value = self.pop(number, None)
        if value is not None:
            size = self._size_of(value)
            self._bytes -= size
            self._memory.remove(size)
        return value

    def trim(self) -> None:
        """Drop the oldest definitions."""
        if len(self) > self._capacity or self._bytes > self._max_bytes:
            large = count_oldest(map(self._size_of, self.values()), self._bytes - self._max_bytes)
            for number in list(islice(self, max(large, len(self) - self._capacity))):
                self.drop(number)

    def clear(self) -> None:
        """Drop all definitions."""
        super().clear()
        self._bytes = 0

    def __missing__(self, number: int) -> _T:
        raise StreamError(f"{self._kind} {number} is not defined")


class StreamReader:
    """Turns the bytes of one stream into captures, in pieces of any size.

    A stream that cannot be read raises `StreamError`; no further bytes of it can be read.
    """

    def __init__(self) -> None:
        self._decoder = RecordDecoder()
        self._memory = _MemoryEstimate()
        self._frames: _Definitions[Frame] = _Definitions("frame", self._memory, _size_of_frame)
        self._stacks: _Definitions[Stack] = _Definitions(
            "stack", self._memory, _size_of_stack, records.MAX_STACK_FRAMES * _REFERENCE_BYTES
        )
        self._threads: _Definitions[CapturedThread] = _Definitions(
            "thread", self._memory, lambda info: len(info.thread.name)
        )
        self._spans: _Definitions[SpanRef] = _Definitions("span", self._memory, lambda span: len(span.endpoint))
        self._labels: _Definitions[Labels] = _Definitions("label set", self._memory, _size_of_labels)
        self._kinds: _Definitions[EventKind] = _Definitions("kind", self._memory, _size_of_kind)
        self._all = (self._frames, self._stacks, self._threads, self._spans, self._labels, self._kinds)
        self._texts: dict[str, str] = {}  # one object for each text of a frame
        self._shared_bytes = 0

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
                read = _READ.get(type(record))
                item: Any = record if read is None else read(self, record)
            except StreamError as error:
                self._decoder.refuse(f"{type(record).__name__}: {error}")
            if item is None:
                continue
            if isinstance(record, records.TRIMMING):
                for known in self._all:
                    known.trim()
            yield item

    def _read_start(self, record: records.StartRecord) -> ProcessStarted:
        for known in self._all:
            known.clear()  # the stream may begin anew
        self._memory.clear()
        return ProcessStarted(_json_object(record.settings))

    def _add_frame(self, record: records.FrameRecord) -> None:
        namespace, function, file, call = map(self._share, record[3:])
        frame = Frame(namespace, function, file, record.line or None, record.first_line, call)
        self._frames.add(record.id, frame)

    def _share(self, text: str) -> str:
        """Return one object for equal texts, safe to print."""
        shared = self._texts.get(text)
        if shared is None:
            self._shared_bytes += len(text)
            if len(self._texts) >= 2 * CAPACITY["frame"] or self._shared_bytes > _MAX_SHARED_BYTES:
                self._texts.clear()
                self._shared_bytes = len(text)
            shared = self._texts[text] = printable(text)
        return shared

    def _add_stack(self, record: records.StackRecord) -> None:
        frames = tuple(map(self._frames.__getitem__, record.frames))
        self._stacks.add(record.id, Stack(frames, truncated=_flag(record.truncated)))

    def _add_thread(self, record: records.ThreadRecord) -> None:
        thread = Thread(record.id, record.name, record.ident, record.native_id)
        known = self._threads.drop(record.id)
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
        count = ValueType(record.count_name, record.count_unit)
        amount = ValueType(record.amount_name, record.amount_unit) if record.amount_name else None
        self._kinds.add(record.id, EventKind(record.name, count, amount, data_type))

    def _read_snapshot(self, record: records.SnapshotRecord) -> CapturedSnapshot:
        if record.scope > FOCUSED:
            raise StreamError(f"the unknown scope {record.scope}")
        _check_times(*record[2:7])
        return CapturedSnapshot(
            *record[:7],
            record.scope == FOCUSED,
            record.scope == COMPLETE,
            self._thread_states(record.threads),
            record.ended,
        )

    def _read_quiet(self, record: records.QuietRecord) -> records.QuietRecord:
        if not 0 < record.deadline_count <= records.MAX_QUIET_DEADLINES:
            raise StreamError(f"{record.deadline_count} deadlines")
        _check_times(record.period_ns * record.deadline_count, record.process_cpu_ns)
        return record

    def _thread_states(self, entries: list[ThreadEntry]) -> list[ThreadState]:
        threads, stacks, spans, label_sets = self._threads, self._stacks, self._spans, self._labels
        return [
            _new_state(
                (
                    threads[thread],
                    stacks[stack],
                    spans[span] if span else None,
                    label_sets[labels] if labels else (),
                    cpu_ns,
                    None if state < 0 else state,
                    nice,
                )
            )
            for thread, stack, span, labels, cpu_ns, state, nice in entries
        ]

    def _read_event(self, record: records.EventRecord) -> CapturedEvent:
        entry = ThreadEntry(record.thread, record.stack, record.span, record.labels, 0, -1, 0)
        labels = tuple(_json_object(record.event_labels).items())
        if any(type(value) not in (str, int) for _, value in labels):
            raise StreamError("a label of an event is neither text nor number")
        event = Event(self._kinds[record.kind], labels, record.event_count, record.event_amount)
        (state,) = self._thread_states([entry])
        return CapturedEvent(record.time_ns, record.instant_ns, state, event, record.live_id)


# Not in the reader, which would refer to itself then, and be memory until a collection of garbage.
_READ: dict[type[Any], Callable[[StreamReader, Any], Item | None]] = {
    records.StartRecord: StreamReader._read_start,
    records.ResourceRecord: lambda _, one: ResourceChanged(
        _flag(one.is_final), _json_object(one.attributes), one.schema_url
    ),
    records.FrameRecord: StreamReader._add_frame,
    records.StackRecord: StreamReader._add_stack,
    records.ThreadRecord: StreamReader._add_thread,
    records.SpanRecord: StreamReader._add_span,
    records.LabelsRecord: StreamReader._add_labels,
    records.EventKindRecord: StreamReader._add_kind,
    records.SnapshotRecord: StreamReader._read_snapshot,
    records.EventRecord: StreamReader._read_event,
    records.QuietRecord: StreamReader._read_quiet,
}


def _flag(number: int) -> bool:
    if number > 1:
        raise StreamError(f"the flag {number}")
    return bool(number)


def _check_times(*times_ns: int) -> None:
    if max(times_ns) > _MAX_NS:
        raise StreamError(f"a time of {max(times_ns)} ns")


def _size_of_frame(frame: Frame) -> int:
    return len(frame.namespace) + len(frame.function) + len(frame.file) + len(frame.call)


def _size_of_stack(stack: Stack) -> int:
    return _REFERENCE_BYTES * len(stack.frames)


def _size_of_labels(labels: Labels) -> int:
    return sum(_LABEL_BYTES + len(name) + len(value) for name, value in labels)


def _size_of_kind(kind: EventKind) -> int:
    return len(kind.name) + sum(map(len, (*kind.count, *(kind.amount or ()))))


def _restore_bytes(found: dict[str, Any]) -> Any:
    return bytes.fromhex(found[records.BYTES_KEY]) if records.BYTES_KEY in found else found


_JSON = json.JSONDecoder(object_hook=_restore_bytes)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = _JSON.decode(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StreamError("a field is no JSON object")
    return value
