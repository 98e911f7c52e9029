"""Tests of code locations, which are the same for every process and every start."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.inspector.code_locations import PAGE_BYTES, CodeLocation, CodeMap
from splunk_profiler.inspector.maps import code_mapping_by_path, parse_maps

PYTHON = "/usr/lib/libpython3.11.so.1.0"


def maps(base: int) -> str:
    """Return the maps of a process whose library lies at `base`."""
    return (
        f"{base:x}-{base + 0x2000:x} r--p 00000000 fe:01 131 {PYTHON}\n"
        f"{base + 0x2000:x}-{base + 0x9000:x} r-xp 00002000 fe:01 131 {PYTHON}\n"
        f"{base + 0x9000:x}-{base + 0xA000:x} rw-p 00009000 fe:01 131 {PYTHON}\n"
        f"{base + 0x10000:x}-{base + 0x12000:x} rwxp 00000000 00:00 0 \n"
        f"{base + 0x20000:x}-{base + 0x22000:x} r-xp 00000000 00:00 0                          [vdso]\n"
        f"{base + 0x30000:x}-{base + 0x31000:x} r-xp 00000000 00:01 9                          /memfd:jit (deleted)\n"
    )


def location(base: int, address: int) -> CodeLocation | None:
    return CodeMap(parse_maps(maps(base))).location(base + address)


def test_a_place_is_a_page_of_a_file_wherever_that_is_mapped() -> None:
    for base in (0x7F0000000000, 0x7F12345678000):
        assert location(base, 0x2000) == CodeLocation(PYTHON, 0x2000)
        assert location(base, 0x3FFF) == CodeLocation(PYTHON, 0x3000)
        assert location(base, 0x8FFF) == CodeLocation(PYTHON, 0x8000)


def test_code_outside_of_files_has_the_name_of_its_memory() -> None:
    assert location(0x7F0000000000, 0x11234) == CodeLocation("[anonymous]", 0)
    assert location(0x7F0000000000, 0x21234) == CodeLocation("[vdso]", 0)
    assert location(0x7F0000000000, 0x30010) == CodeLocation("/memfd:jit", 0)


@pytest.mark.parametrize("address", [-1, 0, 0x1FFF, 0x9000, 0xFFFF, 0x12000, 0x31000])
def test_where_no_code_lies_there_is_no_place(address: int) -> None:
    assert location(0x7F0000000000, address) is None


def test_a_process_without_code_has_no_place() -> None:
    assert CodeMap([]).location(0x1000) is None


def test_memory_that_is_no_file_is_left_out_where_files_are_asked_for() -> None:
    mappings = parse_maps(maps(0x7F0000000000))
    assert code_mapping_by_path(mappings).keys() == {PYTHON, "/memfd:jit"}
    assert {mapping.path for mapping in mappings if mapping.executable} == {PYTHON, "", "[vdso]", "/memfd:jit"}


def test_an_id_is_a_hash_of_the_file_and_the_page() -> None:
    hashed = hashlib.blake2b(PYTHON.encode() + b"\0" + bytes.fromhex("0030000000000000"), digest_size=16)
    assert CodeLocation(PYTHON, 0x3000).stack_trace_id == hashed.hexdigest()
    assert len(bytes.fromhex(CodeLocation(PYTHON, 0x3000).stack_trace_id)) == 16


@given(st.lists(st.builds(CodeLocation, st.text(max_size=8), st.integers(0, 50).map(PAGE_BYTES.__mul__)), max_size=8))
def test_ids_are_equal_exactly_where_places_are(code_locations: list[CodeLocation]) -> None:
    assert len({one.stack_trace_id for one in code_locations}) == len(set(code_locations))
