"""The reader of a stream: what definitions mean and for how long, and what it refuses."""

from __future__ import annotations

import tracemalloc
from collections import deque
from typing import Any

import pytest

from splunk_profiler.model import Frame
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot, ProcessStarted, ResourceChanged, StartTime
from splunk_profiler.stream.codec import StreamError, encode
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import (
    CAPACITY,
    CHANGES,
    COMPLETE,
    FOCUSED,
    HEADER,
    MAX_QUIET_DEADLINES,
    EndpointRecord,
    EventKindRecord,
    EventRecord,
    FrameRecord,
    LabelsRecord,
    LostRecord,
    QuietRecord,
    Record,
    ResourceRecord,
    SnapshotRecord,
    SpanRecord,
    StackRecord,
    StartRecord,
    ThreadEntry,
    ThreadRecord,
    TraceEndRecord,
    TraceRecord,
)

START = StartRecord('{"service":"shop"}')
KIND = EventKindRecord(1, "lock", "waits", "count", "delay", "nanoseconds", "cpu")
DEFINED: list[Record] = [
    FrameRecord(1, 7, 5, "shop", "work", "shop.py", ""),
    StackRecord(1, 0, [1]),
    ThreadRecord(1, 0x7000, 100, 10, 20, "worker"),
    SpanRecord(1, 1 << 100, 2, 1, 3, "GET /"),
    LabelsRecord(1, ["tenant", "blue", "route", "/"]),
    KIND,
]
ENTRY = ThreadEntry(1, 1, 1, 1, 900, 2, -5)


def snapshot(*entries: ThreadEntry, scope: int = CHANGES, ended: list[int] | None = None) -> SnapshotRecord:
    return SnapshotRecord(1, 2, 3, 4, 5, 6, 7, scope, 0, list(entries), ended or [])


def event(
    *, thread: int = 1, stack: int = 1, span: int = 0, labels: int = 0, kind: int = 1, text: str = "{}"
) -> Record:
    return EventRecord(8, 9, thread, stack, span, labels, kind, 2, 64, 0, text)


class Fed:
    """A reader of records."""

    def __init__(self, *records: Record) -> None:
        self.reader = StreamReader()
        self.items = [*self.reader.feed(HEADER)]
        self.feed(*records)

    def feed(self, *records: Record) -> list[Any]:
        found = [*self.reader.feed(b"".join(map(encode, records)))]
        self.items += found
        return found

    def state(self, entry: ThreadEntry = ENTRY) -> Any:
        """Return the state of a thread in a new snapshot."""
        (captured,) = self.feed(snapshot(entry))
        (state,) = captured.threads
        return state


@pytest.fixture
def fed() -> Fed:
    return Fed(START, *DEFINED)


def test_records_that_define_nothing_say_what_is_in_them() -> None:
    found = Fed(
        START,
        ResourceRecord(1, '{"service.name":"shop","n":[1,2.5,true]}', "https://schema"),
        EndpointRecord(3, "GET /cart"),
        TraceRecord(1 << 100, 2, 3, 4),
        TraceEndRecord(1 << 100, 5),
        LostRecord(6),
    ).items
    assert found == [
        ProcessStarted({"service": "shop"}),
        ResourceChanged(True, {"service.name": "shop", "n": [1, 2.5, True]}, "https://schema"),
        EndpointRecord(3, "GET /cart"),
        TraceRecord(1 << 100, 2, 3, 4),
        TraceEndRecord(1 << 100, 5),
        LostRecord(6),
    ]


@pytest.mark.parametrize("record", [StackRecord(9, 2, []), ResourceRecord(7, "{}", "")])
def test_flag_that_is_neither_is_refused(record: Record) -> None:
    with pytest.raises(StreamError, match=f"{type(record).__name__}: the flag {record[1 if record[0] == 9 else 0]}"):
        Fed(START, record)


def test_snapshot_has_the_values_that_its_numbers_stand_for(fed: Fed) -> None:
    (captured,) = fed.feed(snapshot(ENTRY, ENTRY._replace(span=0, labels=0, state=-1), scope=COMPLETE, ended=[4, 5]))
    assert isinstance(captured, CapturedSnapshot)
    assert captured[:9] == (1, 2, 3, 4, 5, 6, 7, False, True)
    assert captured.ended == [4, 5]
    first, second = captured.threads
    assert first.number == 1
    assert (first.info.thread.name, first.info.thread.ident, first.info.thread.native_id) == ("worker", 0x7000, 100)
    assert first.info.start_time == StartTime(10, 20)
    (frame,) = first.stack.frames
    assert (frame.namespace, frame.function, frame.file, frame.line, frame.first_line) == (
        *("shop", "work", "shop.py"),
        *(7, 5),
    )
    assert first.span is not None
    assert (first.span.trace_id, first.span.span_id, first.span.trace_flags) == (1 << 100, 2, 1)
    assert (first.span.local_root_id, first.span.endpoint) == (3, "GET /")
    assert first.labels == (("tenant", "blue"), ("route", "/"))
    assert (first.cpu_ns, first.state, first.nice) == (900, 2, -5)
    assert (second.span, second.labels, second.state) == (None, (), None)
    assert (second.info is first.info, second.stack is first.stack) == (True, True)


def test_scope_says_whether_a_snapshot_is_focused_or_complete(fed: Fed) -> None:
    found = fed.feed(snapshot(scope=CHANGES), snapshot(scope=COMPLETE), snapshot(scope=FOCUSED))
    assert [(one.is_focused, one.is_complete) for one in found] == [(False, False), (False, True), (True, False)]
    with pytest.raises(StreamError, match=r": SnapshotRecord: the unknown scope 3$"):
        fed.feed(snapshot(scope=3))


def test_event_has_its_thread_kind_and_labels(fed: Fed) -> None:
    (found,) = fed.feed(event(span=1, labels=1, text='{"gc.generation":2}'))
    assert isinstance(found, CapturedEvent)
    assert (found.time_ns, found.instant_ns, found.thread.number) == (8, 9, 1)
    assert (found.event.kind.name, found.event.kind.amount) == ("lock", ("delay", "nanoseconds"))
    assert (found.event.labels, found.event.count, found.event.amount) == ((("gc.generation", 2),), 2, 64)
    assert found.thread.span is not None
    assert found.thread.labels == (("tenant", "blue"), ("route", "/"))


def test_what_is_not_known_is_none() -> None:
    fed = Fed(FrameRecord(1, 0, 0, "", "", "", ""), StackRecord(1, 1, [1]), ThreadRecord(1, 0, 0, 0, 0, ""))
    state = fed.state(ThreadEntry(1, 1, 0, 0, 0, -1, 0))
    assert state.info.start_time is None
    assert state.stack.frames[0].line is None
    assert state.stack.truncated


UNDEFINED: list[tuple[Record, str]] = [
    (StackRecord(2, 0, [1, 7]), "StackRecord: frame 7 is not defined"),
    (StackRecord(2, 0, [0]), "StackRecord: frame 0 is not defined"),
    (snapshot(ENTRY._replace(thread=7)), "SnapshotRecord: thread 7 is not defined"),
    (snapshot(ENTRY._replace(thread=0)), "SnapshotRecord: thread 0 is not defined"),
    (snapshot(ENTRY, ENTRY._replace(stack=7)), "SnapshotRecord: stack 7 is not defined"),
    (snapshot(ENTRY._replace(stack=0)), "SnapshotRecord: stack 0 is not defined"),
    (snapshot(ENTRY._replace(span=7)), "SnapshotRecord: span 7 is not defined"),
    (snapshot(ENTRY._replace(labels=7)), "SnapshotRecord: label set 7 is not defined"),
    (event(thread=7), "EventRecord: thread 7 is not defined"),
    (event(stack=7), "EventRecord: stack 7 is not defined"),
    (event(span=7), "EventRecord: span 7 is not defined"),
    (event(labels=7), "EventRecord: label set 7 is not defined"),
    (event(kind=7), "EventRecord: kind 7 is not defined"),
]


@pytest.mark.parametrize(("record", "text"), UNDEFINED, ids=[text for _, text in UNDEFINED])
def test_reference_to_what_is_not_defined_is_refused(fed: Fed, record: Record, text: str) -> None:
    with pytest.raises(StreamError, match=f"{text}$"):
        fed.feed(record)


def redefined(kind: str, number: int) -> Record:
    """Return another definition of a kind."""
    record: Any = dict(zip(CAPACITY, DEFINED, strict=True))[kind]
    redefined: Record = record._replace(id=number)
    return redefined


# What refers to number 1 of each kind, and to nothing else that falls out with it.
REFERENCES: dict[str, Record] = {
    "frame": StackRecord(2, 0, [1]),
    "stack": snapshot(ENTRY),
    "thread": snapshot(ENTRY),
    "span": snapshot(ENTRY),
    "label set": snapshot(ENTRY),
    "kind": event(),
}


@pytest.mark.parametrize("kind", CAPACITY)
def test_definition_is_valid_until_as_many_newer_ones_have_come(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPACITY, kind, 5)
    fed = Fed(START, *DEFINED)
    for number in range(2, 6):
        fed.feed(redefined(kind, number))
    fed.feed(REFERENCES[kind])
    fed.feed(redefined(kind, 6), snapshot())
    with pytest.raises(StreamError, match=f"{kind} 1 is not defined"):
        fed.feed(REFERENCES[kind])


@pytest.mark.parametrize("kind", CAPACITY)
def test_definitions_are_forgotten_when_the_stream_begins_anew(kind: str) -> None:
    fed = Fed(START, *DEFINED)
    fed.feed(START, *(record for record, name in zip(DEFINED, CAPACITY, strict=True) if name not in (kind, "stack")))
    if kind not in ("frame", "stack"):
        fed.feed(StackRecord(1, 0, [1]))
    with pytest.raises(StreamError, match=f"{kind} 1 is not defined"):
        fed.feed(REFERENCES[kind])


def test_definitions_with_the_same_numbers_come_after_a_new_beginning() -> None:
    fed = Fed(START, *DEFINED, redefined("thread", 9))
    fed.feed(START, *DEFINED)
    assert fed.state().info.thread.name == "worker"


def test_lost_snapshots_leave_the_definitions_valid(fed: Fed) -> None:
    assert fed.feed(LostRecord(3)) == [LostRecord(3)]
    assert fed.state().span is not None


def test_definition_of_a_valid_number_replaces_it_from_then_on(fed: Fed) -> None:
    before = fed.state()
    fed.feed(FrameRecord(1, 8, 5, "shop", "other", "shop.py", ""))
    assert fed.state().stack is before.stack
    fed.feed(StackRecord(1, 0, [1, 1]), SpanRecord(1, 5, 6, 0, 0, ""), LabelsRecord(1, ["a", "b"]))
    after = fed.state()
    assert [frame.function for frame in after.stack.frames] == ["other", "other"]
    assert [frame.function for frame in before.stack.frames] == ["work"]
    assert (after.span.trace_id, after.labels) == (5, (("a", "b"),))


def test_thread_that_is_renamed_while_idle_keeps_its_number_and_start(fed: Fed) -> None:
    before = fed.state()
    assert fed.feed(ThreadRecord(1, 0x7000, 100, 0, 0, "renamed")) == []
    assert before.info.thread.name == "renamed"  # whoever has the thread sees it under its new name
    assert before.info.start_time == StartTime(10, 20)
    assert fed.state().info is before.info


def test_equal_texts_of_frames_are_one_object_and_safe_to_print(fed: Fed) -> None:
    fed.feed(
        FrameRecord(2, 1, 1, "shop", "\x1b[31mred\u202e", "a\nb.py", ""),
        FrameRecord(3, 2, 1, "shop", "\x1b[31mred\u202e", "a\nb.py", ""),
        StackRecord(2, 0, [2, 3]),
    )
    one, other = fed.state(ENTRY._replace(stack=2)).stack.frames
    assert (one.function, one.file) == (r"\x1b[31mred\u202e", r"a\nb.py")
    for name in ("namespace", "function", "file"):
        assert getattr(one, name) is getattr(other, name)
    assert isinstance(one, Frame)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "1", "null", '"a"', "[" * 100_000, '{"a":' * 100_000, "{} {}", "\0"),
        *(r'{"a":{"\u0000bytes":"f"}}', r'{"a":{"\u0000bytes":1}}', r'{"\u0000bytes":"ff"}'),
    ],
)
def test_field_that_is_no_json_object_is_refused(text: str) -> None:
    for record in (START._replace(settings=text), ResourceRecord(0, text, ""), event(text=text)):
        with pytest.raises(StreamError, match=f": {type(record).__name__}: a field is no JSON object$"):
            Fed(record)


@pytest.mark.parametrize("text", ['{"a":[]}', '{"a":{}}', '{"a":null}', '{"a":1.5}'])
def test_event_label_that_is_neither_text_nor_number_is_refused(fed: Fed, text: str) -> None:
    with pytest.raises(StreamError, match=r"^byte \d+: EventRecord: "):
        fed.feed(event(text=text))


def test_labels_with_a_name_without_a_value_are_refused() -> None:
    with pytest.raises(StreamError, match=r"^byte 8: LabelsRecord: a name has no value$"):
        Fed(LabelsRecord(1, ["a", "b", "c"]))


def test_event_kind_with_an_unknown_type_of_data_is_refused() -> None:
    with pytest.raises(StreamError, match=r"^byte 8: EventKindRecord: 'heat' is no type of data$"):
        Fed(KIND._replace(data_type="heat"))


@pytest.mark.parametrize("count", [0, MAX_QUIET_DEADLINES + 1])
def test_deadlines_that_are_none_or_too_many_are_refused(count: int) -> None:
    with pytest.raises(StreamError, match=rf"^byte 8: QuietRecord: {count} deadlines$"):
        Fed(QuietRecord(1, 1, 1, 1, count))


@pytest.mark.parametrize("field", ["latency_ns", "period_ns", "since_previous_ns", "process_cpu_ns", "gil_wait_ns"])
def test_times_that_profiles_cannot_have_are_refused(fed: Fed, field: str) -> None:
    made: Any = snapshot()
    fed.feed(made._replace(**{field: (1 << 63) - 1}))
    with pytest.raises(StreamError, match=f": SnapshotRecord: a time of {1 << 63} ns$"):
        fed.feed(made._replace(**{field: 1 << 63}))


def test_refused_record_is_named_by_its_byte_and_the_last_one_that_is_read() -> None:
    reader, good, bad = StreamReader(), encode(START), encode(StackRecord(2, 0, [7]))
    for data in (HEADER + good + bad + good, good):
        with pytest.raises(StreamError, match=f"^byte {len(HEADER + good)}: StackRecord: frame 7 is not defined$"):
            [*reader.feed(data)]
        assert reader.pending_bytes == 0


def test_stream_that_cannot_be_read_keeps_nothing_of_what_comes_after(fed: Fed) -> None:
    for _ in range(3):
        with pytest.raises(StreamError):
            [*fed.reader.feed(bytes(1 << 20))]
        assert fed.reader.pending_bytes < 2 << 20


@pytest.mark.parametrize("between", [[], [snapshot()]])
def test_definitions_of_more_than_128_mib_are_refused(between: list[Record]) -> None:
    """A host that is broken or hostile must not take the memory of the machine."""
    fed = Fed()
    frames = (FrameRecord(number, 7, 5, "", f"{number}".ljust(1 << 20, "x"), "", "") for number in range(1, 1000))
    tracemalloc.start()
    try:
        with pytest.raises(StreamError, match="definitions of more than 128 MiB"):
            deque((fed.feed(frame, *between) for frame in frames), maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 320 << 20
    finally:
        tracemalloc.stop()


def test_definitions_that_replace_each_other_take_no_more_memory() -> None:
    fed = Fed()
    for number in range(2 * 130):
        fed.feed(ThreadRecord(number % 2, 0, 0, 0, 0, f"{number}".ljust(1 << 20, "x")))


@pytest.mark.parametrize("restart_every", [3_000, 1_000_000])
def test_definitions_that_follow_each_other_for_ever_are_read(restart_every: int) -> None:
    fed = Fed()
    for number in range(1, 5 * CAPACITY["label set"]):
        fed.feed(LabelsRecord(number, ["order", f"{number}".ljust(8000, "x")]))
        if number % 100 == 0:
            fed.feed(snapshot())
        if number % restart_every == 0:
            fed.feed(START)
