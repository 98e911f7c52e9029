"""Tests of the decoders: valid bytes give values, and any bytes give a value or a clear error."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspected_process import record_bytes, storage_bytes

from splunk_profiler.inspector import host, layouts
from splunk_profiler.inspector.errors import MalformedError, UnreadableError
from splunk_profiler.inspector.layouts import RawLabelSet, Slot
from splunk_profiler.inspector.model import CorrelationRecord, Label

BASE = 0x10000


class FlatMemory:
    """The memory of a process that has only `data`, at `BASE`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, address: int, size: int) -> bytes:
        if address < BASE or address + size > BASE + len(self._data):
            raise UnreadableError(f"{address:#x}")
        return self._data[address - BASE : address - BASE + size]


def read_record(data: bytes) -> CorrelationRecord:
    return layouts.read_record(FlatMemory(data).read, BASE)


def label_set_bytes(*pairs: tuple[bytes, bytes]) -> bytes:
    """Return a label set at `BASE`, followed by its slots and then its texts."""
    slots, texts = b"", b""
    address = BASE + 24 + 32 * len(pairs)
    for pair in pairs:
        for text in pair:
            slots += struct.pack("<QQ", len(text), address + len(texts))
            texts += text
    return struct.pack("<QQQ", BASE + 24, len(pairs), len(pairs)) + slots + texts


def test_a_record_has_37_bytes_and_gives_its_fields() -> None:
    data = record_bytes(bytes(range(16)), bytes(range(8)), bytes(range(8, 16)), flags=0xFF)
    assert len(data) == 37
    found = read_record(data)
    assert (found.minor_version, found.valid, found.trace_present, found.trace_flags) == (1, 1, 1, 255)
    assert found.trace_id == "000102030405060708090a0b0c0d0e0f"
    assert found.span_id == "0001020304050607"
    assert found.transaction_id == "08090a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("valid", "present", "is_usable"), [(1, 1, True), (255, 1, True), (0, 1, False), (1, 0, False)]
)
def test_ids_are_usable_while_the_record_is_valid_and_a_trace_present(
    valid: int, present: int, is_usable: bool
) -> None:
    assert read_record(record_bytes(valid=valid, present=present)).is_usable is is_usable


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_unreadable(data: bytes) -> None:
    try:
        found = read_record(data)
    except UnreadableError:
        assert len(data) < 37
    else:
        assert bytes.fromhex(found.trace_id + found.span_id + found.transaction_id) == data[5:37]
        host.record_problems(found)


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.integers(0, 0xFFFF))
def test_a_storage_gives_its_texts_back(service: str, environment: str, path: str, minor: int) -> None:
    texts = [text.encode("utf-8", "surrogatepass") for text in (service, environment, path)]
    memory = FlatMemory(storage_bytes(texts[0], texts[1], texts[2], minor=minor))
    found = layouts.read_storage(memory.read, BASE)
    shown = [found.service_name, found.service_environment, found.socket_path]
    assert [text.encode("utf-8", "surrogateescape") for text in shown] == texts
    assert found.minor_version == minor
    host.storage_problems(found)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_storage_or_a_clear_error(data: bytes) -> None:
    try:
        found = layouts.read_storage(FlatMemory(data).read, BASE)
    except (MalformedError, UnreadableError):
        return
    host.storage_problems(found)


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=60)), max_size=14))
def test_equal_keys_keep_the_first_value_in_the_spec_and_the_last_in_hosts(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    memory = FlatMemory(label_set_bytes(*pairs))
    specified = layouts.spec_labels(layouts.read_label_set(memory.read, BASE, layouts.SPEC_LIMITS))
    assert {label.key: label.value for label in specified} == dict(reversed(pairs))
    found = layouts.read_label_set(memory.read, BASE, host.HOST_LIMITS)
    shown = host.host_labels(found)
    assert len(shown) <= 10
    assert all(len(label.key) <= 25 and len(label.value) <= 53 and b"\0" not in label.value for label in shown)
    assert len({label.key for label in shown}) == len(shown)
    if not host.label_problems(found):
        assert set(shown) == set(specified)


@given(st.binary(max_size=200), st.sampled_from([layouts.SPEC_LIMITS, host.HOST_LIMITS]))
def test_any_bytes_are_a_label_set_or_a_clear_error(data: bytes, limits: layouts.Limits) -> None:
    try:
        found = layouts.read_label_set(FlatMemory(data).read, BASE, limits)
    except (MalformedError, UnreadableError):
        return
    layouts.spec_labels(found)
    host.host_labels(found)
    host.label_problems(found)


@given(
    st.lists(
        st.builds(
            Slot,
            st.integers(0, 2**64 - 1),
            st.none() | st.binary(max_size=40),
            st.integers(0, 2**64 - 1),
            st.none() | st.binary(max_size=80),
        ),
        max_size=14,
    )
)
def test_any_slots_are_labels_to_a_host(slots: list[Slot]) -> None:
    found = RawLabelSet(len(slots), tuple(slots))
    for label in host.host_labels(found):
        label.key.decode("utf-8")
    host.label_problems(found)


def test_an_empty_place_is_ignored_and_counts_as_one_of_ten() -> None:
    slots = [Slot(0, None, 0, None)] * 9 + [Slot(1, b"a", 1, b"1"), Slot(1, b"b", 1, b"2")]
    assert host.host_labels(RawLabelSet(11, tuple(slots))) == (Label(b"a", b"1"),)
