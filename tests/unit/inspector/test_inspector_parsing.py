"""Tests of the inspector's other parsers: maps, ELF files, registers, socket paths."""

from __future__ import annotations

import io
import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspected_process import MACHINE, TargetBuilder

from splunk_profiler.inspector.architecture import ARCHITECTURES, architecture_of
from splunk_profiler.inspector.elf import Image, Segment, contains_any, read_image
from splunk_profiler.inspector.errors import MalformedError, UnsupportedError
from splunk_profiler.inspector.maps import LIBRARY_PATTERNS, code_mapping_by_path, parse_maps, runs_musl, runs_python
from splunk_profiler.inspector.model import Interface
from splunk_profiler.inspector.reasons import CATALOGUE
from splunk_profiler.inspector.sockets import socket_problem

ROOT = Path(__file__).resolve().parents[3]
X86_64, AARCH64 = ARCHITECTURES
THIS_ARCHITECTURE = next(one for one in ARCHITECTURES if one.name == MACHINE)
SYMBOL_NAMES = {"custom_labels_current_set", "custom_labels_abi_version"}

MAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:01 131 /usr/bin/python3.11
55d0c0001000-55d0c0002000 r-xp 00001000 fe:01 131 /usr/bin/python3.11
7f0000000000-7f0000001000 r-xp 00002000 fe:01 200                        /srv/my app/libcustomlabels.so (deleted)
7f0000001000-7f0000002000 r-xp 00003000 fe:01 201 /srv/new\\012line.so
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> TargetBuilder:
    return TargetBuilder(tmp_path_factory.mktemp("workshop"))


def test_maps_give_files_with_their_paths_as_the_process_sees_them() -> None:
    found = parse_maps(MAPS)
    assert [(one.path, one.executable, one.deleted) for one in found] == [
        ("/usr/bin/python3.11", False, False),
        ("/usr/bin/python3.11", True, False),
        ("/srv/my app/libcustomlabels.so", True, True),
        ("/srv/new\nline.so", True, False),
    ]
    assert code_mapping_by_path(found)["/usr/bin/python3.11"].offset == 0x1000
    assert runs_python(found)
    assert not runs_python(found[2:])
    assert not runs_musl(found)
    assert runs_musl(parse_maps("7f0000000000-7f0000001000 r-xp 00000000 fe:01 2 /lib/ld-musl-x86_64.so.1"))


@given(st.text())
def test_any_text_is_read_as_maps(text: str) -> None:
    parse_maps(text)


@pytest.mark.parametrize(
    ("interface", "path", "taken"),
    [
        (Interface.ELASTIC, "/a/elastic-jvmti-linux-x86_64.so", True),
        (Interface.ELASTIC, "/a/elastic-jvmti-linux-.so", True),
        (Interface.ELASTIC, "/a/elastic-jvmti-x86_64.so", False),
        (Interface.ELASTIC, "elastic-jvmti-linux-x86_64.so", False),
        (Interface.LABELS, "/a/libcustomlabels.so", True),
        (Interface.LABELS, "/a/libcustomlabels-v1.2.so", True),
        (Interface.LABELS, "/a/customlabels.node", True),
        (Interface.LABELS, "/a/customlabels.so", False),
    ],
)
def test_host_profilers_take_files_by_these_names(interface: Interface, path: str, taken: bool) -> None:
    assert bool(LIBRARY_PATTERNS[interface].search(path)) is taken


def test_a_librarys_symbols_and_descriptor_are_found(workshop: TargetBuilder) -> None:
    with workshop.labels().open("rb") as file:
        assert contains_any(file, [b"custom_labels_current_set"])
        assert not contains_any(file, [b"elastic_apm_profiling_correlation_tls_v1"])
        image = read_image(file, SYMBOL_NAMES)
    assert image.exported.keys() == SYMBOL_NAMES
    assert image.exported["custom_labels_abi_version"].size == 4
    assert {found.symbol: found.kind for found in image.relocations} == {
        "custom_labels_current_set": THIS_ARCHITECTURE.tlsdesc_relocation
    }
    assert image.has_sections


def test_a_librarys_descriptor_for_aarch64_is_found_by_its_own_number(workshop: TargetBuilder) -> None:
    data = workshop.labels().read_bytes()
    (ours,) = read_image(io.BytesIO(data), SYMBOL_NAMES).relocations
    data = data[:18] + struct.pack("<H", 183) + data[20:]
    data = data.replace(
        struct.pack("<QI", ours.address, THIS_ARCHITECTURE.tlsdesc_relocation), struct.pack("<QI", ours.address, 1031)
    )
    assert architecture_of(data[:20]) is AARCH64
    (found,) = read_image(io.BytesIO(data), SYMBOL_NAMES).relocations
    assert (found.kind, found.symbol, found.address) == (AARCH64.tlsdesc_relocation, ours.symbol, ours.address)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_no_elf_file_and_are_said_to_be_none(tail: bytes, tail_bytes: int) -> None:
    for head in (b"", b"\x7fELF\x02\x01\x01" + bytes(9), b"\x7fELF\x01\x02\x01" + bytes(9)):
        try:
            read_image(io.BytesIO(head + tail[:tail_bytes]), SYMBOL_NAMES)
        except MalformedError:
            continue


def test_a_library_that_was_damaged_gives_facts_or_a_clear_error(workshop: TargetBuilder) -> None:
    good = workshop.labels().read_bytes()
    for at in [*range(16, 64), *range(len(good) - 1800, len(good), 7)]:
        for byte in (0x00, 0xFF):
            damaged = bytearray(good)
            damaged[at] = byte
            try:
                read_image(io.BytesIO(bytes(damaged)), SYMBOL_NAMES)
            except MalformedError:
                continue


@pytest.mark.parametrize(
    ("start", "offset", "bias"), [(0x7F0000001000, 0x1000, 0x7F0000000000), (0x7F0000003000, 0x2000, 0x7F0000000000)]
)
def test_the_bias_is_what_the_loader_added(start: int, offset: int, bias: int) -> None:
    image = Image(True, (Segment(0, 0), Segment(0x1040, 0x1040), Segment(0x3DE8, 0x2DE8)), {}, frozenset(), (), 0, 1)
    assert image.bias(start, offset, 0x1000) == bias
    with pytest.raises(MalformedError):
        image.bias(start, 0x9000, 0x1000)


@pytest.mark.parametrize(
    ("machine", "architecture"), [(62, "x86_64"), (183, "aarch64"), (3, None), (40, None), (243, None)]
)
def test_the_architecture_is_told_from_the_program(machine: int, architecture: str | None) -> None:
    header = b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little")
    if architecture is None:
        with pytest.raises(UnsupportedError):
            architecture_of(header)
    else:
        assert architecture_of(header).name == architecture


@given(st.binary(max_size=40))
def test_any_header_gives_an_architecture_or_a_clear_error(header: bytes) -> None:
    try:
        assert architecture_of(header) in ARCHITECTURES
    except UnsupportedError:
        return


def test_static_tls_lies_below_the_thread_pointer_on_x86_64_and_above_it_on_aarch64() -> None:
    below = (1 << 64) - 152
    assert (X86_64.static_offset(below), AARCH64.static_offset(below)) == (-152, None)
    assert (X86_64.static_offset(152), AARCH64.static_offset(152)) == (None, 152)
    for one in ARCHITECTURES:
        assert one.static_offset(0) is None
        assert one.static_offset(0x7F0000001000) is None
    assert X86_64.static_offset((1 << 64) - (1 << 20)) is None
    assert AARCH64.static_offset(1 << 20) is None


def test_the_programs_own_tls_is_next_to_the_thread_pointer() -> None:
    assert X86_64.executable_offset(8, 20, 16) == 8 - 32
    assert AARCH64.executable_offset(8, 20, 64) == 8 + 64
    assert AARCH64.executable_offset(8, 20, 1) == 8 + 16


def test_the_thread_pointer_is_taken_from_the_right_register() -> None:
    registers = b"".join(number.to_bytes(8, "little") for number in range(27))
    assert X86_64.thread_pointer(registers) == 21
    assert AARCH64.thread_pointer(registers[:8]) == 0
    assert len(registers) == X86_64.register_set_bytes


def test_the_instruction_pointer_is_taken_from_the_right_register() -> None:
    registers = b"".join(number.to_bytes(8, "little") for number in range(34))
    assert X86_64.instruction_pointer(registers[: X86_64.general_set_bytes]) == 16
    assert AARCH64.instruction_pointer(registers) == 32
    assert AARCH64.general_set_bytes == len(registers)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "socket-path-empty"),
        ("run/s", "socket-path-relative"),
        ("/run/../s", "socket-path-dots"),
        ("/run/s\0", "socket-path-not-text"),
        ("/" + "s" * 89, "socket-path-too-long"),
        ("/nowhere", "socket-absent"),
        ("/file", "socket-not-socket"),
        ("/file/s", "socket-absent"),
    ],
)
def test_a_socket_path_that_would_not_do_is_told_apart(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "file").write_text("")
    problem = socket_problem(tmp_path, path)
    assert problem is not None
    assert problem.code == code


@given(st.binary(max_size=120))
def test_any_socket_path_is_judged(path: bytes) -> None:
    socket_problem(Path("/nowhere"), os.fsdecode(path))


def test_every_reason_is_documented_with_its_remedy() -> None:
    text = (ROOT / "docs" / "inspect.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", text, re.M))
    assert rows == {code: level.value for code, (level, _, _) in CATALOGUE.items()}


def test_every_reason_that_the_code_gives_is_in_the_catalogue() -> None:
    folder = ROOT / "splunk_profiler" / "inspector"
    given_codes = set()
    for name in ("host", "sockets", "publishers", "published", "reader"):
        text = (folder / f"{name}.py").read_text("utf-8")
        given_codes |= set(re.findall(r'"((?:[a-z0-9]+-)+[a-z0-9]+)"', text))
    given_codes -= {"utf-8"}
    assert given_codes == set(CATALOGUE)
