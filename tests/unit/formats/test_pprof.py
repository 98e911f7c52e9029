"""Profiles as pprof, decoded with the official schema and compared with what was recorded."""

from __future__ import annotations

import base64
import gzip
import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from profile_factory import large_profile, message, small_profile
from profile_schema import decode

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.formats.pprof import MAX_BODY_BYTES, MAX_TEXT_CHARACTERS, EncodedPart, body, parts
from splunk_profiler.model import DataType, EventKind, Frame, Stack, ValueType
from splunk_profiler.samples import Aggregate, InstrumentationSource, Profile

GOLDEN = Path(__file__).parents[2] / "golden"

COUNTED = EventKind("exception", ValueType("exceptions", "count"))
LOCKS = EventKind("lock", ValueType("waits", "count"), ValueType("delay", "nanoseconds"))
OBJECTS = EventKind("object", ValueType("objects", "count"), ValueType("space", "bytes"), data_type=DataType.ALLOCATION)
PAGES = EventKind("page", ValueType("pages", "count"), ValueType("mapped", "bytes"), data_type=DataType.ALLOCATION)
INT64 = range(-(1 << 63), 1 << 63)
ANY_TEXT = st.text(st.characters(), max_size=12)  # with lone surrogates and control characters
FRAMES = st.builds(
    Frame,
    namespace=st.sampled_from(["shop.cart.Cart", "unknown"]) | ANY_TEXT,
    function=st.sampled_from(["total", "<lambda>"]) | ANY_TEXT,
    file=st.sampled_from(["/srv/shop/cart.py", "<string>"]) | ANY_TEXT,
    line=st.none() | st.integers(1, 3) | st.integers(1, 1 << 31),
    first_line=st.integers(0, 3) | st.integers(0, 1 << 31),
)
LABELS = st.lists(
    st.tuples(
        st.sampled_from(["thread.name", "source.event.time", "source.event.period"]) | ANY_TEXT,
        ANY_TEXT | st.integers(-5, 5) | st.integers(-(1 << 70), 1 << 70),
    ),
    max_size=5,
).map(tuple)
AMOUNTS = st.integers(0, 300) | st.integers(0, (1 << 63) - 1)
NUMBERS = AMOUNTS | st.integers(-(1 << 63), -1)  # clocks may be set to anything


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Draw profiles whose aggregates share frames, stacks and labels, as those of one process do."""
    frames = draw(st.lists(FRAMES, min_size=1, max_size=6))
    stack = st.builds(Stack, st.lists(st.sampled_from(frames), max_size=200).map(tuple), st.booleans())
    stacks = draw(st.lists(stack, min_size=1, max_size=4))
    data_type = draw(st.sampled_from(DataType))
    kinds = draw(
        st.permutations((GC_KIND, COUNTED, LOCKS) if data_type is DataType.CPU else (OBJECTS, PAGES)).map(tuple)
    )
    own = st.sampled_from(kinds) if data_type is not DataType.CPU else st.none() | st.sampled_from(kinds)
    aggregates = st.builds(Aggregate, st.sampled_from(stacks), LABELS, *[NUMBERS] * 3, own, AMOUNTS, AMOUNTS)
    return draw(
        st.builds(
            Profile,
            NUMBERS,
            AMOUNTS,
            AMOUNTS,
            st.lists(aggregates, max_size=8).map(tuple),
            st.integers(0, 9),
            st.just(InstrumentationSource.CONTINUOUS),
            st.just(data_type),
            st.just(kinds),
        )
    )


@lru_cache(1 << 12)
def shown(text: str) -> str:
    """Return a text with unprintable characters and surrogates as Python escapes them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def recorded(aggregate: Aggregate, profile: Profile) -> tuple[Any, ...]:
    """Return the frames, labels and values that a reader has to find for an aggregate."""
    frames = tuple(
        (
            shown(f"{frame.namespace}.{frame.function}"),
            shown(frame.function),
            shown(frame.file),
            frame.line or 0,
            frame.first_line,
        )
        for frame in aggregate.stack.frames
    )
    labels = tuple(
        (shown(key), shown(value) if isinstance(value, str) else value if value in INT64 else str(value))
        for key, value in aggregate.labels
        if value != ""
    )
    timed = profile.data_type is DataType.CPU
    values = [aggregate.count, aggregate.wall_ns, aggregate.cpu_ns] if timed else []
    for kind in profile.kinds:
        own = (aggregate.event_count, aggregate.event_amount) if kind == aggregate.kind else (0, 0)
        values += own[: len(kind.values)]
    return frames, labels, tuple(values)


def read(decoded: Any) -> list[tuple[Any, ...]]:
    """Return the same for each sample of a message, with all references resolved."""
    text = decoded.string_table
    functions = {function.id: function for function in decoded.function}
    frames = {}
    for location in decoded.location:
        (line,) = location.line
        function = functions[line.function_id]
        names = (text[function.name], text[function.system_name], text[function.filename])
        frames[location.id] = (*names, line.line, function.start_line)
    found = []
    for sample in decoded.sample:
        labels = tuple((text[label.key], text[label.str] if label.str else label.num) for label in sample.label)
        found.append((tuple(frames[number] for number in sample.location_id), labels, tuple(sample.value)))
    return found


def unpacked(part: EncodedPart) -> Any:
    return decode(gzip.decompress(part.gzipped))


@given(profiles())
def test_what_is_decoded_is_what_was_recorded(profile: Profile) -> None:
    decoded = decode(message(profile))
    assert read(decoded) == [recorded(aggregate, profile) for aggregate in profile.aggregates]
    assert decoded.time_nanos == profile.time_ns
    assert decoded.duration_nanos == profile.duration_ns
    assert decoded.period == (profile.period_ns if profile.data_type is DataType.CPU else 0)
    assert_no_reference_dangles_and_nothing_is_there_twice(decoded)


def assert_no_reference_dangles_and_nothing_is_there_twice(decoded: Any) -> None:
    assert decoded.string_table[0] == ""
    assert [mapping.id for mapping in decoded.mapping] == [1]
    assert {location.mapping_id for location in decoded.location} <= {1}
    for table in (decoded.location, decoded.function):
        assert [row.id for row in table] == list(range(1, len(table) + 1))
    places = [(location.line[0].function_id, location.line[0].line) for location in decoded.location]
    functions = [(row.name, row.system_name, row.filename, row.start_line) for row in decoded.function]
    assert len(set(places)) == len(places)
    assert len(set(functions)) == len(functions)
    assert {place[0] for place in places} == set(range(1, len(functions) + 1))


def test_a_message_is_what_the_golden_file_says() -> None:
    assert text_format.MessageToString(decode(message(small_profile()))) == (GOLDEN / "profile.textproto").read_text()


def test_values_have_types_and_units_and_cpu_is_shown_first() -> None:
    decoded = decode(message(small_profile()))
    text = decoded.string_table
    types = [(text[kind.type], text[kind.unit]) for kind in decoded.sample_type]
    times = [("samples", "count"), ("wall", "nanoseconds"), ("cpu", "nanoseconds")]
    assert types == [*times, ("collections", "count"), ("gc", "nanoseconds")]
    assert (text[decoded.period_type.type], text[decoded.period_type.unit]) == ("wall", "nanoseconds")
    assert text[decoded.default_sample_type] == "cpu"


def test_profile_of_another_data_type_has_no_timer_values() -> None:
    aggregate = Aggregate(Stack((), truncated=False), (), 0, 0, 0, PAGES, 3, 12_288)
    profile = Profile(5, 6, 7, (aggregate,), data_type=DataType.ALLOCATION, kinds=(OBJECTS, PAGES))
    decoded = decode(message(profile))
    text = decoded.string_table
    types = [(text[kind.type], text[kind.unit]) for kind in decoded.sample_type]
    assert types == [("objects", "count"), ("space", "bytes"), ("pages", "count"), ("mapped", "bytes")]
    assert [tuple(sample.value) for sample in decoded.sample] == [(0, 0, 3, 12_288)]
    assert text[decoded.default_sample_type] == "space"
    assert not decoded.HasField("period_type"), "the distance of snapshots says nothing of it"


def test_event_of_a_kind_missing_from_the_profile_is_an_error() -> None:
    aggregate = Aggregate(Stack((), truncated=False), (), 0, 0, 0, LOCKS, 3, 4)
    with pytest.raises(KeyError):
        message(Profile(5, 6, 7, (aggregate,), kinds=(GC_KIND,)))


def test_the_mapping_says_that_no_symbols_have_to_be_looked_for() -> None:
    (mapping,) = decode(message(small_profile())).mapping
    assert mapping.has_functions
    assert mapping.has_filenames
    assert mapping.has_line_numbers


def test_a_number_that_is_a_duration_has_its_unit() -> None:
    decoded = decode(message(small_profile()))
    text = decoded.string_table
    units = {text[label.key]: text[label.num_unit] for label in decoded.sample[0].label if label.num}
    assert units == {
        "source.event.time": "",
        "source.event.period": "milliseconds",
        "thread.id": "",
        "thread.os.id": "",
    }


def test_functions_of_one_name_that_begin_on_different_lines_are_two() -> None:
    frames = tuple(Frame("shop", "<lambda>", "shop.py", line, line) for line in (3, 7))
    aggregate = Aggregate(Stack(frames, truncated=False), (), 1, 1, 1)
    decoded = decode(message(Profile(1, 1, 1, (aggregate,))))
    assert [function.start_line for function in decoded.function] == [3, 7]


def test_a_profile_of_nothing_is_complete() -> None:
    decoded = decode(message(Profile(5, 6, 7, (), kinds=(GC_KIND,))))
    assert (decoded.time_nanos, decoded.duration_nanos, decoded.period) == (5, 6, 7)
    assert len(decoded.sample_type) == 5
    assert not decoded.sample


def test_labels_that_were_dropped_are_counted_in_a_comment() -> None:
    decoded = decode(message(large_profile(2, dropped_labels=12)))
    assert [decoded.string_table[index].split()[0] for index in decoded.comment] == ["12"]
    assert not decode(message(large_profile(2))).comment


def test_comments_of_a_profile_are_those_of_its_first_part() -> None:
    found = parts(replace(large_profile(300), comments=("gil.wait: long",)), max_body_bytes=20_000)
    messages = [decode(gzip.decompress(part.gzipped)) for part in found]
    comments = [[each.string_table[index] for index in each.comment] for each in messages]
    assert comments == [["gil.wait: long"], *[[]] * (len(found) - 1)]


def test_a_body_is_the_gzipped_message_in_base64_and_the_same_each_time() -> None:
    (part,) = parts(small_profile())
    assert base64.b64decode(body(part), validate=True) == part.gzipped
    assert gzip.decompress(part.gzipped) == message(small_profile())
    assert parts(small_profile()) == [part]
    assert part.gzipped[4:8] == bytes(4), "gzip's header has no time"


def test_the_frames_of_all_samples_are_counted() -> None:
    (part,) = parts(small_profile())
    assert part.frame_count == 3 + 2 + 2 + 2


def test_profile_too_large_for_one_body_is_split_and_keeps_its_sums() -> None:
    source = random.Random(2)
    profile = large_profile(1_500, dropped_labels=3)
    noted = [replace(one, labels=(*one.labels, ("note", source.randbytes(400).hex()))) for one in profile.aggregates]
    profile = replace(profile, aggregates=tuple(noted))
    found = parts(profile)
    assert len(found) > 1
    assert all(len(body(part)) <= MAX_BODY_BYTES for part in found)
    decoded = [unpacked(part) for part in found]
    assert [sample for each in decoded for sample in read(each)] == [
        recorded(one, profile) for one in profile.aggregates
    ]
    assert [part.frame_count for part in found] == [sum(len(s.location_id) for s in each.sample) for each in decoded]
    assert {(each.time_nanos, each.duration_nanos, each.period) for each in decoded} == {
        (profile.time_ns, profile.duration_ns, profile.period_ns)
    }
    assert sum(len(each.comment) for each in decoded) == 1, "what was dropped is said once"


def test_a_sample_that_no_body_can_hold_is_a_part_of_its_own() -> None:
    profile = large_profile(5)
    found = parts(profile, max_body_bytes=100)
    assert [sample for part in found for sample in read(unpacked(part))] == [
        recorded(a, profile) for a in profile.aggregates
    ]
    assert len(found) == 5


def test_a_text_without_end_is_cut_and_does_not_multiply_with_the_parts() -> None:
    source = random.Random(1)
    name = "".join(source.choices("0123456789abcdef", k=3_000_000))
    profile = large_profile(20)
    profile = replace(
        profile,
        aggregates=tuple(replace(one, labels=(*one.labels, ("thread.name", name))) for one in profile.aggregates),
    )
    (part,) = parts(profile)
    assert len(body(part)) <= MAX_BODY_BYTES
    sent = {value for _, labels, _ in read(unpacked(part)) for key, value in labels if len(str(value)) > 1000}
    assert sent == {name[: MAX_TEXT_CHARACTERS - 1] + "…"}


def test_others_are_let_in_while_a_large_profile_is_encoded() -> None:
    calls: Counter[str] = Counter()
    parts(large_profile(1000), pause=lambda: calls.update(["pause"]))
    assert calls["pause"] >= 10
