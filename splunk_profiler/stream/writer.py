"""The writer of a stream, in Python: values to records, each defined once while a reader knows it.

One thread at a time uses a writer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

from splunk_profiler.model import EventKind, Frame, SpanRef, Stack
from splunk_profiler.stream import records
from splunk_profiler.stream.codec import check_size, encode
from splunk_profiler.stream.records import (
    BYTES_KEY,
    CAPACITY,
    HEADER,
    TRIMMING,
    EventKindRecord,
    FrameRecord,
    LabelsRecord,
    Record,
    SnapshotRecord,
    SpanRecord,
    StackRecord,
    ThreadRecord,
    count_oldest,
)

RENEWED_AFTER = 1 << 31  # definitions of a kind: its field of 32 bits has room until the next snapshot

Labels = tuple[tuple[str, str], ...]
_Key = TypeVar("_Key", bound=Hashable)


class Floors(NamedTuple):
    """The numbers below which no thread, stack, span and set of labels is valid any more."""

    threads: int
    stacks: int
    spans: int
    labels: int


class _Numbers(dict[_Key, int]):
    """The numbers of the definitions that a reader knows, oldest first; none that is below `floor`."""

    def __init__(self, kind: str, frames_of: Callable[[_Key], int] = lambda _key: 0) -> None:
        super().__init__()
        self._capacity = CAPACITY[kind]
        self._max_frames = records.MAX_STACK_FRAMES
        self._frames_of = frames_of
        self._frame_count = 0
        self.last = 0  # stays 0 for threads, whose numbers are given
        self.floor = 1
        self.is_too_large = False  # a plain attribute: each event looks at it

    def next(self) -> int:
        """Return the number for a new definition, which is added once it is written."""
        self.last += 1
        return self.last

    def add(self, key: _Key, number: int) -> None:
        """Add a definition that is written."""
        self[key] = number
        self._frame_count += self._frames_of(key)
        self.is_too_large = len(self) > self._capacity or self._frame_count > self._max_frames

    def trim(self) -> None:
        """Forget what a reader drops."""
        deep = count_oldest(map(self._frames_of, self), self._frame_count - self._max_frames)
        for key in list(islice(self, max(deep, len(self) - self._capacity))):
            self._frame_count -= self._frames_of(key)
            self.floor = max(self.floor, self.pop(key) + 1)
        self.is_too_large = False

    def clear(self) -> None:
        """Forget all; numbers begin anew."""
        super().clear()
        self.last, self.floor, self._frame_count, self.is_too_large = 0, 1, 0, False


class StreamWriter:
    """Gathers the bytes of a stream. Methods that return a number write the definition that it stands for."""

    def __init__(self) -> None:
        self._frames: _Numbers[Frame] = _Numbers("frame")
        self._stacks: _Numbers[tuple[tuple[Frame, ...], bool]] = _Numbers("stack", lambda key: len(key[0]))
        self._spans: _Numbers[SpanRef] = _Numbers("span")
        self._labels: _Numbers[Labels] = _Numbers("label set")
        self._kinds: _Numbers[str] = _Numbers("kind")  # by name: a kind takes long to hash
        self._threads: _Numbers[int] = _Numbers("thread")
        self._all = (self._frames, self._stacks, self._spans, self._labels, self._kinds, self._threads)
        self._pending = bytearray(HEADER)

    @property
    def pending_bytes(self) -> int:
        """Number of bytes since the last `take`."""
        return len(self._pending)

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        taken = bytes(self._pending)
        self._pending.clear()
        return taken

    def restart(self) -> None:
        """Discard what is not taken yet, and begin the stream anew. The next snapshot has to have all threads."""
        self._pending[:] = HEADER
        self._forget()

    def renew_numbers(self) -> bool:
        """Begin numbers anew if many are used; return True if so: the next snapshot has to have all threads."""
        is_due = max(numbers.last for numbers in self._all) >= RENEWED_AFTER
        if is_due:
            self._forget()
        return is_due

    def _forget(self) -> None:
        for numbers in self._all:
            numbers.clear()

    @property
    def floors(self) -> Floors:
        """The numbers below which no others are valid any more."""
        return Floors(self._threads.floor, self._stacks.floor, self._spans.floor, self._labels.floor)

    def write(self, record: Record) -> None:
        """Add a record; `StreamError` if it is too large."""
        self._pending += encode(record)
        if isinstance(record, TRIMMING):
            self._trim()

    def write_snapshot(self, encoded: bytes) -> None:
        """Add a `SnapshotRecord` that is encoded already; `StreamError` if it is too large."""
        check_size(len(encoded), SnapshotRecord)
        self._pending += encoded
        self._trim()

    def _trim(self) -> None:
        for numbers in self._all:
            if numbers.is_too_large:
                numbers.trim()

    def knows_thread(self, number: int) -> bool:
        """Return True if the definition of a thread is valid."""
        return number in self._threads

    def thread(self, record: ThreadRecord) -> None:
        """Define a thread, or define it anew."""
        self.write(record)
        self._threads.pop(record.id, None)
        self._threads.add(record.id, record.id)

    def stack(self, stack: Stack) -> int:
        """Return the number of a stack."""
        key = (stack.frames, stack.truncated)
        number = self._stacks.get(key)
        if number is None:
            frames = [self._frames.get(frame) or self._define_frame(frame) for frame in stack.frames]
            number = self._stacks.next()
            self.write(StackRecord(number, stack.truncated, frames))
            self._stacks.add(key, number)
        return number

    def span(self, span: SpanRef | None) -> int:
        """Return the number of a span, 0 for None."""
        if span is None:
            return 0
        number = self._spans.get(span)
        if number is None:
            number = self._spans.next()
            self.write(SpanRecord(number, *span))
            self._spans.add(span, number)
        return number

    def labels(self, labels: Labels) -> int:
        """Return the number of a set of labels, 0 for none."""
        if not labels:
            return 0
        number = self._labels.get(labels)
        if number is None:
            number = self._labels.next()
            self.write(LabelsRecord(number, [text for pair in labels for text in pair]))
            self._labels.add(labels, number)
        return number

    def kind(self, kind: EventKind) -> int:
        """Return the number of a kind of events."""
        number = self._kinds.get(kind.name)
        if number is None:
            number = self._kinds.next()
            self.write(
                EventKindRecord(number, kind.name, *kind.count, *(kind.amount or ("", "")), kind.data_type.value)
            )
            self._kinds.add(kind.name, number)
        return number

    def _define_frame(self, frame: Frame) -> int:
        number = self._frames.next()
        line, first_line = frame.line or 0, frame.first_line
        self.write(FrameRecord(number, line, first_line, frame.namespace, frame.function, frame.file, frame.call))
        self._frames.add(frame, number)
        return number


def _to_json(value: object) -> object:
    return {BYTES_KEY: value.hex()} if isinstance(value, bytes) else str(value)


_JSON = json.JSONEncoder(default=_to_json, separators=(",", ":"))


def json_object(values: Mapping[str, object]) -> str:
    """Return the text of a field that is a JSON object; values that JSON does not have become texts, but for bytes."""
    return _JSON.encode(dict(values)) if values else "{}"
