"""Where in its code a thread was: the same for every process and every start, whatever addresses it has."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.inspector.maps import parse_code, parse_maps
from splunk_profiler.inspector.places import PAGE_BYTES, CodeMap, CodePlace

PYTHON = "/usr/lib/libpython3.11.so.1.0"


def maps(base: int) -> str:
    """A process whose library lies at `base`, as the kernel shows it."""
    return (
        f"{base:x}-{base + 0x2000:x} r--p 00000000 fe:01 131 {PYTHON}\n"
        f"{base + 0x2000:x}-{base + 0x9000:x} r-xp 00002000 fe:01 131 {PYTHON}\n"
        f"{base + 0x9000:x}-{base + 0xA000:x} rw-p 00009000 fe:01 131 {PYTHON}\n"
        f"{base + 0x10000:x}-{base + 0x12000:x} rwxp 00000000 00:00 0 \n"
        f"{base + 0x20000:x}-{base + 0x22000:x} r-xp 00000000 00:00 0                          [vdso]\n"
        f"{base + 0x30000:x}-{base + 0x31000:x} r-xp 00000000 00:01 9                          /memfd:jit (deleted)\n"
    )


def place(base: int, address: int) -> CodePlace | None:
    return CodeMap(parse_code(maps(base))).place(base + address)


def test_a_place_is_a_page_of_a_file_wherever_that_is_mapped() -> None:
    for base in (0x7F0000000000, 0x7F12345678000):
        assert place(base, 0x2000) == CodePlace(PYTHON, 0x2000)
        assert place(base, 0x3FFF) == CodePlace(PYTHON, 0x3000)
        assert place(base, 0x8FFF) == CodePlace(PYTHON, 0x8000)


def test_code_outside_of_files_is_told_by_the_name_of_its_memory() -> None:
    assert place(0x7F0000000000, 0x11234) == CodePlace("[anonymous]", 0)
    assert place(0x7F0000000000, 0x21234) == CodePlace("[vdso]", 0)
    assert place(0x7F0000000000, 0x30010) == CodePlace("/memfd:jit", 0)


@pytest.mark.parametrize("address", [-1, 0, 0x1FFF, 0x9000, 0xFFFF, 0x12000, 0x31000])
def test_where_no_code_lies_there_is_no_place(address: int) -> None:
    assert place(0x7F0000000000, address) is None


def test_a_process_without_code_has_no_place() -> None:
    assert CodeMap([]).place(0x1000) is None


def test_memory_that_is_no_file_is_left_out_where_files_are_asked_for() -> None:
    text = maps(0x7F0000000000)
    assert {mapping.path for mapping in parse_maps(text)} == {PYTHON, "/memfd:jit"}
    assert {mapping.path for mapping in parse_code(text)} == {PYTHON, "", "[vdso]", "/memfd:jit"}


def test_an_id_is_a_hash_of_the_file_and_the_page() -> None:
    hashed = hashlib.blake2b(PYTHON.encode() + b"\0" + bytes.fromhex("0030000000000000"), digest_size=16)
    assert CodePlace(PYTHON, 0x3000).stack_trace_id == hashed.hexdigest()
    assert len(bytes.fromhex(CodePlace(PYTHON, 0x3000).stack_trace_id)) == 16


@given(st.lists(st.builds(CodePlace, st.text(max_size=8), st.integers(0, 50).map(PAGE_BYTES.__mul__)), max_size=8))
def test_ids_are_equal_exactly_where_places_are(places: list[CodePlace]) -> None:
    assert len({one.stack_trace_id for one in places}) == len(set(places))
