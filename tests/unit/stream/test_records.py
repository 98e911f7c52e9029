"""The bytes of records: what each can say, how they are refused, and that a cut loses only what is cut off."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_stream import Recorded, record_ends, record_run

from splunk_profiler.stream.codec import RecordDecoder, StreamError, encode
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import (
    HEADER,
    MAX_RECORD_BYTES,
    RECORD_TYPES,
    EndpointRecord,
    EndRecord,
    LabelsRecord,
    SnapshotRecord,
    ThreadEntry,
)

LIMITS = {
    "B": (0, 2**8 - 1),
    "I": (0, 2**32 - 1),
    "Q": (0, 2**64 - 1),
    "b": (-(2**7), 2**7 - 1),
    "q": (-(2**63), 2**63 - 1),
    "16s": (0, 2**128 - 1),
}
GOLDEN = Path(__file__).parents[2] / "golden"
FIRST = encode(EndpointRecord(1, "first"))
by_type = pytest.mark.parametrize("record_type", RECORD_TYPES, ids=lambda each: each.__name__)


def hints_of(record_type: type[Any]) -> dict[str, Any]:
    return get_type_hints(record_type, include_extras=True)


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is Annotated:
        return st.integers(*LIMITS[hint.__metadata__[0]])
    if hint is str:
        return st.text()
    (item,) = get_args(hint)
    return st.lists(any_record(item) if hasattr(item, "_fields") else strategy_of(item))


def any_record(record_type: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(record_type, **{name: strategy_of(hint) for name, hint in hints_of(record_type).items()})


def example(record_type: type[Any]) -> Any:
    """Return a record with ones, a text of two bytes and lists of two items."""

    def value(hint: Any) -> Any:
        if get_origin(hint) is Annotated:
            return 1
        if hint is str:
            return "é"
        (item,) = get_args(hint)
        return [example(item) if hasattr(item, "_fields") else value(item)] * 2

    return record_type(*map(value, hints_of(record_type).values()))


def decode(data: bytes) -> list[Any]:
    return [*RecordDecoder().feed(HEADER + data)]


def framed(number: int, body: bytes) -> bytes:
    return struct.pack("<IB", len(body) + 1, number) + body


def test_records_are_what_the_golden_file_says() -> None:
    """Kept streams of this version are read by later releases: other bytes need another version."""
    lines = [f"header {HEADER.hex()}", *(f"{each.__name__} {encode(example(each)).hex()}" for each in RECORD_TYPES)]
    assert lines == (GOLDEN / "stream.records").read_text("utf-8").splitlines()


@by_type
@given(st.data())
def test_record_of_any_content_is_read_as_it_was_written(record_type: type[Any], data: st.DataObject) -> None:
    record = data.draw(any_record(record_type))
    (read,) = decode(encode(record))
    assert (type(read), read) == (record_type, record)


NUMBERS = [
    pytest.param(record_type, field, *LIMITS[hint.__metadata__[0]], id=f"{record_type.__name__}.{field}")
    for record_type in (*RECORD_TYPES, ThreadEntry)
    for field, hint in hints_of(record_type).items()
    if get_origin(hint) is Annotated
]


@pytest.mark.parametrize(("record_type", "field", "least", "most"), NUMBERS)
def test_number_at_its_limit_is_written_and_one_beyond_is_refused(
    record_type: type[Any], field: str, least: int, most: int
) -> None:
    def record(value: int) -> Any:
        changed = example(record_type)._replace(**{field: value})
        return example(SnapshotRecord)._replace(threads=[changed]) if record_type is ThreadEntry else changed

    for value in (least, most):
        assert decode(encode(record(value))) == [record(value)]
    for value in (least - 1, most + 1):
        with pytest.raises(StreamError, match=f"^{type(record(value)).__name__} cannot be written: "):
            encode(record(value))


def test_number_in_a_list_beyond_its_limit_is_refused() -> None:
    for value in (-1, 2**32):
        with pytest.raises(StreamError, match="SnapshotRecord cannot be written"):
            encode(example(SnapshotRecord)._replace(ended=[value]))


class OddText(str):
    """A text of the application."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError


def test_text_of_another_class_is_written_without_its_code() -> None:
    assert encode(EndpointRecord(1, OddText("first"))) == FIRST


def test_half_of_a_surrogate_pair_is_escaped() -> None:
    assert decode(encode(EndpointRecord(1, "a\ud800b"))) == [EndpointRecord(1, r"a\ud800b")]


def test_record_of_the_largest_size_is_read_and_a_larger_one_not_written() -> None:
    room = MAX_RECORD_BYTES - 1 - 8 - 4
    largest = EndpointRecord(1, "x" * room)
    data = encode(largest)
    assert len(data) == 4 + MAX_RECORD_BYTES
    assert decode(data) == [largest]
    with pytest.raises(StreamError, match=f"EndpointRecord of {MAX_RECORD_BYTES} bytes is larger"):
        encode(EndpointRecord(1, "x" * (room + 1)))


def refused(data: bytes, text: str) -> None:
    """Check that bytes after a first record are refused with their place, whole and byte by byte."""
    place = len(HEADER) + len(FIRST)
    for pieces in ([HEADER + FIRST + data], [bytes([byte]) for byte in HEADER + FIRST + data]):
        decoder, found = RecordDecoder(), list[Any]()
        with pytest.raises(StreamError, match=f"^byte {place}: {text}"):
            found += (record for piece in pieces for record in decoder.feed(piece))
        assert found == [EndpointRecord(1, "first")]


@pytest.mark.parametrize("number", [0, len(RECORD_TYPES) + 1, 255])
def test_record_of_an_unknown_type_is_refused(number: int) -> None:
    refused(framed(number, bytes(8)), f"a record of the unknown type {number}$")


@by_type
@pytest.mark.parametrize("size", [0, MAX_RECORD_BYTES + 1, 2**32 - 1])
def test_record_of_a_size_that_none_has_is_refused_at_once(record_type: type[Any], size: int) -> None:
    number = RECORD_TYPES.index(record_type) + 1
    refused(struct.pack("<IB", size, number) + bytes(3), f"a {record_type.__name__} of {size} bytes$")


@by_type
def test_record_that_ends_anywhere_too_early_says_by_how_many_bytes(record_type: type[Any]) -> None:
    data = encode(example(record_type))
    number, body = data[4], data[5:]
    for size in range(len(body)):
        place = len(HEADER) + len(FIRST)
        with pytest.raises(StreamError, match=rf"^byte {place}: {record_type.__name__}: it ends \d+ bytes too early$"):
            decode(FIRST + framed(number, body[:size]) + FIRST)


@by_type
def test_record_with_bytes_that_belong_to_no_field_is_refused(record_type: type[Any]) -> None:
    data = encode(example(record_type))
    refused(framed(data[4], data[5:] + b"123"), f"{record_type.__name__}: it has 3 bytes too many$")


def test_count_that_is_too_large_is_refused_before_anything_is_made() -> None:
    labels, snapshot = encode(LabelsRecord(1, [])), encode(example(SnapshotRecord)._replace(threads=[], ended=[]))
    for data, place in ((labels, 4), (snapshot, 4), (snapshot, 8)):
        wrong = bytearray(data)
        wrong[-place : len(wrong) - place + 4] = b"\xff" * 4
        refused(bytes(wrong), r"\w+: it ends \d+ bytes too early$")


def test_text_that_is_not_utf_8_is_refused() -> None:
    refused(encode(EndpointRecord(1, "xyz")).replace(b"xyz", b"x\xffz"), r"EndpointRecord: a text is not UTF-8 \(.+\)$")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"GET / HT", "byte 0: this is no stream of the profiler: it begins with b'GET / HT'"),
        (b"\0" * 8, "byte 0: this is no stream"),
        (HEADER[:-1] + b"\x07", "byte 0: the stream has version 7; this profiler reads version 6"),
        (HEADER[:-1] + b"\x00", "byte 0: the stream has version 0; this profiler reads version 6"),
    ],
)
def test_stream_with_another_header_is_refused(header: bytes, text: str) -> None:
    with pytest.raises(StreamError) as raised:
        [*RecordDecoder().feed(header + FIRST)]
    assert str(raised.value).startswith(text)


def test_stream_that_begins_anew_with_another_version_is_refused() -> None:
    refused(HEADER[:-1] + b"\x07", "the stream has version 7")


def test_stream_that_begins_anew_goes_on_with_its_records() -> None:
    assert decode(FIRST + HEADER + HEADER + FIRST) == [EndpointRecord(1, "first")] * 2


def test_no_bytes_are_an_empty_stream() -> None:
    decoder = RecordDecoder()
    assert [*decoder.feed(b"")] == []
    assert decoder.pending_bytes == 0


def test_decoder_that_is_left_in_the_middle_goes_on_from_there() -> None:
    decoder = RecordDecoder()
    records = decoder.feed(HEADER + FIRST + encode(EndRecord(1, 2, 3, 4)))
    assert next(records) == EndpointRecord(1, "first")
    records.close()  # type: ignore[attr-defined]
    assert [*decoder.feed(b"")] == [EndRecord(1, 2, 3, 4)]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return record_run()


def test_stream_that_comes_byte_by_byte_or_is_cut_has_its_whole_records(recorded: Recorded) -> None:
    data = recorded.data
    expected, ends = decode(data[len(HEADER) :]), record_ends(data)
    assert len(expected) == len(ends) - 1
    decoder, found, last_end = RecordDecoder(), list[Any](), 0
    for place in range(1, len(data) + 1):
        found += decoder.feed(data[place - 1 : place])
        if place in ends:
            last_end = place
            assert len(found) == ends.index(place)
        assert decoder.pending_bytes == place - last_end  # not 0: a stream that ends here was cut off
    assert found == expected


def test_captures_of_a_stream_in_pieces_are_those_of_the_whole(recorded: Recorded) -> None:
    data = recorded.data
    expected = [repr(item) for item in StreamReader().feed(data)]
    assert len(expected) > recorded.snapshot_count
    reader = StreamReader()
    found = [repr(item) for place in range(len(data)) for item in reader.feed(data[place : place + 1])]
    assert found == expected


@given(st.lists(st.integers(1, 5_000)))
def test_pieces_of_any_size_give_the_same_records(recorded: Recorded, sizes: list[int]) -> None:
    data, decoder, found = recorded.data, RecordDecoder(), list[Any]()
    for size in sizes:
        found += decoder.feed(data[:size])
        data = data[size:]
    found += decoder.feed(data)
    assert found == decode(recorded.data[len(HEADER) :])


_SIZES = {"B": "u8", "I": "u32", "Q": "u64", "b": "i8", "q": "i64", "16s": "16 bytes"}


def _described(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _SIZES[hint.__metadata__[0]]
    if hint is str:
        return "text"
    (item,) = get_args(hint)
    return f"list of `{item.__name__}`" if hasattr(item, "_fields") else f"list of {_described(item)}"


def test_documentation_has_the_fields_of_every_record() -> None:
    page = (Path(__file__).parents[3] / "docs" / "internals" / "stream.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")][2:]
    expected = []
    rows_of: list[tuple[Any, Any]] = [*enumerate(RECORD_TYPES, 1), ("", ThreadEntry)]
    for number, record_type in rows_of:
        hints = get_type_hints(record_type, include_extras=True)
        fields = ", ".join(f"`{name}` {_described(hint)}" for name, hint in hints.items())
        text = " ".join((record_type.__doc__ or "").split())
        expected.append(f"| {number} | `{record_type.__name__}` | {fields} | {text} |")
    assert rows == expected
