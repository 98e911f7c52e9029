"""The writer of a stream: each value is defined while a reader knows it, and is read as it was written."""

from __future__ import annotations

import gc
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from splunk_profiler.model import EventKind, Frame, SpanRef, Stack, ValueType
from splunk_profiler.stream import records
from splunk_profiler.stream.captured import CapturedSnapshot, ResourceChanged
from splunk_profiler.stream.codec import RecordDecoder, StreamError
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import (
    CAPACITY,
    COMPLETE,
    HEADER,
    MAX_STACK_FRAMES,
    EventRecord,
    ResourceRecord,
    SnapshotRecord,
    StartRecord,
    ThreadEntry,
    ThreadRecord,
)
from splunk_profiler.stream.writer import StreamWriter, json_object

START = StartRecord("{}")
THREAD = ThreadRecord(1, 7, 8, 0, 0, "worker")


def stack_of(*frames: Frame) -> Stack:
    return Stack(frames, truncated=False)


def frame(number: int) -> Frame:
    return Frame("shop", f"work_{number}", "shop.py", number + 1)


def kind(number: int) -> EventKind:
    return EventKind(f"kind_{number}", ValueType(f"count_{number}", "count"), ValueType(f"amount_{number}", "bytes"))


# What defines a value, and values of each kind. A stack has a frame of its own.
Define = tuple[Callable[[StreamWriter, Any], int], Callable[[int], Any]]
KINDS: dict[str, Define] = {
    "stack": (StreamWriter.stack, lambda number: stack_of(frame(number))),
    "span": (StreamWriter.span, lambda number: SpanRef(number + 1, 2, 1)),
    "label set": (StreamWriter.labels, lambda number: (("tenant", str(number)),)),
    "kind": (StreamWriter.kind, kind),
}
by_kind = pytest.mark.parametrize("name", KINDS)


def defined(writer: StreamWriter, decoder: RecordDecoder) -> Counter[str]:
    """Return how many definitions of each type the writer has written."""
    return Counter(type(record).__name__.removesuffix("Record") for record in decoder.feed(writer.take()))


def write_snapshot(writer: StreamWriter, *entries: ThreadEntry) -> None:
    writer.write(SnapshotRecord(0, 0, 0, 0, 0, 0, 0, COMPLETE, 0, list(entries), []))


@by_kind
def test_value_is_defined_once_and_keeps_its_number(name: str) -> None:
    define, value = KINDS[name]
    writer, decoder, one = StreamWriter(), RecordDecoder(), value(0)
    numbers = {define(writer, one) for _ in range(10)}
    assert len(numbers) == 1
    assert 0 not in numbers
    assert max(defined(writer, decoder).values()) == 1
    assert define(writer, one) in numbers
    assert not defined(writer, decoder)


@by_kind
def test_value_is_defined_again_after_as_many_newer_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPACITY, name, 8)
    define, value = KINDS[name]
    writer, decoder, values = StreamWriter(), RecordDecoder(), [value(number) for number in range(9)]
    first = define(writer, values[0])
    for other in values[1:]:
        define(writer, other)
        write_snapshot(writer)
    defined(writer, decoder)
    again = define(writer, values[0])
    assert again != first
    assert max(defined(writer, decoder).values()) == 1
    assert define(writer, values[0]) == again
    assert not defined(writer, decoder)


def test_deep_stacks_are_defined_again_after_as_many_frames() -> None:
    """Runaway recursion makes each stack new: 4,096 with a thousand frames would take 32 MiB on both sides."""
    writer, reader = StreamWriter(), StreamReader()
    frames = [frame(number) for number in range(600)]
    stacks = [stack_of(one, *frames[:1] * 1023) for one in frames]
    numbers = []
    for stack in stacks:
        numbers.append(writer.stack(stack))
        write_snapshot(writer)
    kept = MAX_STACK_FRAMES // 1024
    assert kept < len(stacks)
    assert writer.floors.stacks == numbers[-kept]
    assert [writer.stack(stack) for stack in stacks[-kept:]] == numbers[-kept:]
    assert writer.stack(stacks[-kept - 1]) not in numbers
    writer.thread(ThreadRecord(1, 1, 1, 0, 0, "worker"))
    write_snapshot(writer, *(ThreadEntry(1, number, 0, 0, 0, 0, 0) for number in numbers[-kept:]))
    *_, captured = reader.feed(writer.take())
    assert isinstance(captured, CapturedSnapshot)
    assert [state.stack.frames[0].function for state in captured.threads] == [one.function for one in frames[-kept:]]
    write_snapshot(writer, ThreadEntry(1, numbers[-kept], 0, 0, 0, 0, 0))
    with pytest.raises(StreamError, match=f"stack {numbers[-kept]} is not defined"):
        [*reader.feed(writer.take())]


def test_frames_are_defined_once_for_all_stacks() -> None:
    writer, decoder = StreamWriter(), RecordDecoder()
    frames = [frame(number) for number in range(4)]
    for leaf in frames:
        writer.stack(stack_of(leaf, *frames))
        writer.stack(Stack((leaf, *frames), truncated=True))
    assert defined(writer, decoder) == {"Frame": 4, "Stack": 8}


def test_nothing_has_the_number_nought() -> None:
    writer = StreamWriter()
    assert (writer.span(None), writer.labels(())) == (0, 0)
    assert writer.take() == HEADER
    assert writer.take() == b""


def test_values_that_json_does_not_have_become_texts() -> None:
    assert json_object({"a": 1, "b": range(2), "c": (1, None)}) == '{"a":1,"b":"range(0, 2)","c":[1,null]}'


def test_bytes_among_attributes_are_read_as_bytes() -> None:
    attributes: dict[str, object] = {"a": b"\xff\x00", "b": {"c": [b"", "text", math.inf, None, 2**70]}}
    writer = StreamWriter()
    writer.write(ResourceRecord(1, json_object(attributes), ""))
    assert list(StreamReader().feed(writer.take())) == [ResourceChanged(True, attributes, "")]


def test_writer_that_begins_anew_defines_everything_again() -> None:
    writer, decoder = StreamWriter(), RecordDecoder()
    values: list[tuple[Define, Any]] = [(define, define[1](0)) for define in KINDS.values()]
    for (define, _), value in values:
        define(writer, value)
    writer.restart()
    beginning = writer.take()
    assert beginning == HEADER  # what was not taken is discarded
    assert [*decoder.feed(beginning)] == []
    for (define, _), value in values:
        define(writer, value)
    assert defined(writer, decoder) == {"Frame": 1, "Stack": 1, "Span": 1, "Labels": 1, "EventKind": 1}


def test_definition_that_is_too_large_is_refused_each_time() -> None:
    writer, text = StreamWriter(), "x" * (5 << 20)
    wide = Frame("shop", text, "shop.py", 1)
    attempts: list[Callable[[], int]] = [
        lambda: writer.labels((("tenant", text),)),
        lambda: writer.span(SpanRef(1, 2, 1, 3, text)),
        lambda: writer.stack(stack_of(wide)),
        lambda: writer.kind(EventKind(text, ValueType("a", "b"), ValueType("c", "d"))),
    ]
    for attempt in attempts:
        for _ in range(3):  # a number of what is not written would break the stream
            with pytest.raises(StreamError):
                attempt()


class Agreement:
    """A writer and a reader, and snapshots whose threads must be read as they were written."""

    def __init__(self) -> None:
        self.writer, self.reader = StreamWriter(), StreamReader()
        self.begin()

    def begin(self) -> None:
        self.writer.write(START)
        self.writer.write(THREAD)

    def pass_on(self, threads: list[tuple[Stack, SpanRef | None, tuple[tuple[str, str], ...]]]) -> None:
        writer = self.writer
        entries = [
            ThreadEntry(1, writer.stack(stack), writer.span(span), writer.labels(labels), 0, 0, 0)
            for stack, span, labels in threads
        ]
        write_snapshot(writer, *entries)
        (captured,) = (item for item in self.reader.feed(writer.take()) if isinstance(item, CapturedSnapshot))
        assert [(named(state.stack), state.span, state.labels) for state in captured.threads] == [
            (named(stack), span, labels) for stack, span, labels in threads
        ]


def named(stack: Stack) -> tuple[str, ...]:
    return tuple(frame.function for frame in stack.frames)


def _instances() -> int:
    gc.collect()
    return sum(isinstance(one, (Frame, Stack)) for one in gc.get_objects())


def test_both_ends_agree_over_30000_random_definitions_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"frame": 512, "stack": 128, "span": 64, "label set": 64}
    for name, capacity in small.items():
        monkeypatch.setitem(CAPACITY, name, capacity)
    monkeypatch.setattr(records, "MAX_STACK_FRAMES", 512)
    chance, agreement, before = random.Random(3), Agreement(), _instances()
    frames = [frame(number) for number in range(1024)]
    first = stack_of(*frames[:20])
    stacks = [stack_of(*chance.choices(frames, k=chance.randrange(1, 12))) for _ in range(512)]
    spans = [None, *(SpanRef(number + 1, 2, 1) for number in range(256))]
    labels = [(), *((("tenant", str(number)),) for number in range(256))]
    made = _instances() - before
    references = 0
    while references < 30_000:
        size = chance.randrange(1, 21)
        threads = [(chance.choice(stacks), chance.choice(spans), chance.choice(labels)) for _ in range(size)]
        agreement.pass_on([(first, spans[1], labels[1]), *threads])  # a thread that stays where it is
        references += 3 * (size + 1)
        if chance.random() < 0.003:
            agreement.writer.restart()
            agreement.begin()
    assert _instances() - before - made <= small["frame"] + small["stack"] + 20 * 12


@pytest.mark.parametrize("count", [1, 3_000, 5_000])
def test_snapshot_of_as_many_different_stacks_is_read_as_it_was_written(count: int) -> None:
    agreement = Agreement()
    for _ in range(2):
        agreement.pass_on([(stack_of(frame(number), frame(0)), None, ()) for number in range(count)])


def test_thread_that_stays_beside_new_stacks_never_breaks_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("frame", "stack", "span", "label set"):
        monkeypatch.setitem(CAPACITY, name, 64)
    agreement, staying = Agreement(), (stack_of(frame(0)), SpanRef(1, 2, 1), (("tenant", "blue"),))
    for number in range(300):
        new = (stack_of(frame(number), frame(0)), SpanRef(number + 2, 2, 1), (("tenant", str(number)),))
        agreement.pass_on([staying, new])


def test_stack_of_old_and_new_frames_never_breaks_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPACITY, "frame", 64)
    agreement, leaf = Agreement(), frame(0)
    for number in range(300):
        agreement.pass_on([(stack_of(leaf, *(frame(number * 10 + each) for each in range(10))), None, ())])


def test_event_after_many_snapshots_finds_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPACITY, "kind", 4)
    agreement, kinds = Agreement(), [kind(number) for number in range(9)]
    for number in range(100):
        wanted = kinds[number * 5 % 9]
        stack, numbered = agreement.writer.stack(stack_of(frame(number))), agreement.writer.kind(wanted)
        agreement.writer.write(EventRecord(0, 0, 1, stack, 0, 0, numbered, 1, 1, 0, "{}"))
        *_, found = agreement.reader.feed(agreement.writer.take())
        assert found.event.kind == wanted  # type: ignore[union-attr]
