"""Tests of the inspector's other parsers: maps, ELF files, registers, socket paths."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspected_process import MACHINE, TargetBuilder
from sparse_elf import DYNAMIC_SYMBOLS, NAMES, STRING_TABLE, Section, write_elf

from splunk_profiler.inspector.architecture import ARCHITECTURES, Architecture, architecture_of
from splunk_profiler.inspector.elf import Image, ReadBudget, read_image
from splunk_profiler.inspector.errors import MalformedError, UnsupportedError
from splunk_profiler.inspector.maps import LIBRARY_PATTERNS, code_mapping_by_path, parse_maps, runs_musl, runs_python
from splunk_profiler.inspector.memory import IoVec
from splunk_profiler.inspector.model import Interface
from splunk_profiler.inspector.reasons import CATALOGUE
from splunk_profiler.inspector.sockets import socket_problem
from splunk_profiler.inspector.tracer import Tracer

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


THREAD_POINTER, INSTRUCTION_POINTER = 0x7F00DEADBEE8, 0x55D0C0001234
# Both as the kernel's headers list them: struct user_regs_struct, struct user_pt_regs.
X86_64_REGISTERS = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax"
    " rip cs eflags rsp ss fs_base gs_base ds es fs gs"
)
AARCH64_REGISTERS = " ".join(f"x{number}" for number in range(31)) + " sp pc pstate"


def encode_registers(names: str, **values: int) -> bytes:
    """Return the register set; every other register has a small value of its own."""
    return b"".join(struct.pack("<Q", values.get(name, number)) for number, name in enumerate(names.split()))


STOPPED_THREADS = [  # their register sets by the numbers in elf.h: 1 is NT_PRSTATUS, 0x401 is NT_ARM_TLS
    (X86_64, {1: encode_registers(X86_64_REGISTERS, rip=INSTRUCTION_POINTER, fs_base=THREAD_POINTER)}),
    (
        AARCH64,
        {1: encode_registers(AARCH64_REGISTERS, pc=INSTRUCTION_POINTER), 0x401: struct.pack("<2Q", THREAD_POINTER, 7)},
    ),
]


def parse(content: bytes) -> Image:
    return read_image(io.BytesIO(content), SYMBOL_NAMES, ReadBudget(1 << 20))


def test_maps_give_files_with_their_paths_as_the_process_sees_them() -> None:
    found = parse_maps(MAPS)
    assert [(one.path, one.executable, one.deleted) for one in found if one.path.startswith("/")] == [
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


@pytest.mark.parametrize("separator", "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_path_with_any_line_separator_forges_no_line_of_maps(separator: str) -> None:
    path = f"/srv/a{separator}7f0000001000-7f0000002000 r-xp 00000000 fe:01 201 /srv/libcustomlabels.so"
    (mapping,) = parse_maps(f"7f0000000000-7f0000001000 r-xp 00000000 fe:01 200 {path}\n")
    assert mapping.path == path


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
    image = parse(workshop.labels().read_bytes())
    assert image.exported.keys() == SYMBOL_NAMES
    assert image.exported["custom_labels_abi_version"].size == 4
    assert {name: set(found) for name, found in image.relocations.items()} == {
        "custom_labels_current_set": {THIS_ARCHITECTURE.tlsdesc_relocation},
        "custom_labels_abi_version": set(),
    }
    assert image.has_sections


def test_a_librarys_descriptor_for_aarch64_is_found_by_its_own_number(workshop: TargetBuilder) -> None:
    data = workshop.labels().read_bytes()
    (address,) = parse(data).relocations["custom_labels_current_set"].values()
    data = data[:18] + struct.pack("<H", 183) + data[20:]
    data = data.replace(
        struct.pack("<QI", address, THIS_ARCHITECTURE.tlsdesc_relocation), struct.pack("<QI", address, 1031)
    )
    assert architecture_of(data[:20]) is AARCH64
    found = parse(data).relocations["custom_labels_current_set"]
    assert found == {AARCH64.tlsdesc_relocation: address}


def test_a_symbol_that_another_file_defines_is_not_the_files(workshop: TargetBuilder) -> None:
    data = workshop.labels().read_bytes()
    entry = struct.pack("<QQ", *parse(data).exported["custom_labels_abi_version"])
    pieces = [piece[:-2] + bytes(2) for piece in data.split(entry)[:-1]]  # before the value is the section's number
    image = parse(entry.join([*pieces, data.split(entry)[-1]]))
    assert image.exported.keys() == {"custom_labels_current_set"}
    assert not image.internal


@pytest.mark.parametrize("ident", [b"\x7fELF\x01\x01\x01", b"\x7fELF\x02\x02\x01"], ids=["32 bits", "big endian"])
def test_a_file_of_another_architecture_is_refused(ident: bytes) -> None:
    with pytest.raises(MalformedError, match="64-bit"):
        parse(ident + bytes(100))


@pytest.mark.parametrize(("kind", "files"), [(STRING_TABLE, 20), (DYNAMIC_SYMBOLS, 1)])
def test_headers_and_small_tables_count_as_read(tmp_path: Path, kind: int, files: int) -> None:
    write_elf(tmp_path / "many.so", *[NAMES, *[Section(kind, 0, 0)] * 1000])
    with (tmp_path / "many.so").open("rb") as file:
        budget = ReadBudget(1 << 20)
        with pytest.raises(MalformedError, match="is more than is read"):
            _ = [read_image(file, SYMBOL_NAMES, budget) for _ in range(files)]


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_reported_as_no_elf_file(tail: bytes, tail_bytes: int) -> None:
    for head in (b"", b"\x7fELF\x02\x01\x01" + bytes(9), b"\x7fELF\x01\x02\x01" + bytes(9)):
        try:
            parse(head + tail[:tail_bytes])
        except MalformedError:
            continue


def test_a_library_that_was_damaged_gives_facts_or_a_clear_error(workshop: TargetBuilder) -> None:
    good = workshop.labels().read_bytes()
    for at in [*range(16, 64), *range(len(good) - 1800, len(good), 7)]:
        for byte in (0x00, 0xFF):
            damaged = bytearray(good)
            damaged[at] = byte
            try:
                parse(bytes(damaged))
            except MalformedError:
                continue


@pytest.mark.parametrize(("mapped_page", "offset_page"), [(0, 0), (1, 1), (3, 2)])
def test_the_bias_is_what_the_loader_added(mapped_page: int, offset_page: int) -> None:
    page, bias = mmap.PAGESIZE, 0x7F0000000000
    segments = [(0, 0), (page + 0x40, page + 0x40), (2 * page + 0xDE8, 3 * page + 0xDE8)]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0
    )
    table = [struct.pack("<IIQQQQQQ", 1, 4, offset, address, address, 8, 8, page) for offset, address in segments]
    image = parse(header + b"".join(table))
    assert image.bias(bias + mapped_page * page, offset_page * page) == bias
    with pytest.raises(MalformedError):
        image.bias(bias + mapped_page * page, 9 * page)


@pytest.mark.parametrize(
    ("machine", "architecture"), [(62, "x86_64"), (183, "aarch64"), (3, None), (40, None), (243, None)]
)
def test_the_architecture_is_that_of_the_program(machine: int, architecture: str | None) -> None:
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


def test_static_tls_is_below_the_thread_pointer_on_x86_and_above_on_arm() -> None:
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


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch, register_sets: dict[int, bytes]) -> Tracer:
    """A tracer of a stopped thread with these register sets, of either architecture."""

    def ptrace(_request: int, _tid: int, register_set: int, address: int) -> int:
        iovec = IoVec.from_address(address)
        data = register_sets[register_set]
        ctypes.memmove(iovec.base, data, min(iovec.length, len(data)))
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(ptrace=ptrace))
    return Tracer(1)


@pytest.mark.parametrize(("architecture", "register_sets"), STOPPED_THREADS, ids=["x86_64", "aarch64"])
def test_the_thread_pointer_is_taken_from_the_right_register(architecture: Architecture, tracer: Tracer) -> None:
    assert tracer.read_register(1, architecture.thread_pointer) == THREAD_POINTER


@pytest.mark.parametrize(("architecture", "register_sets"), STOPPED_THREADS, ids=["x86_64", "aarch64"])
def test_the_instruction_pointer_is_taken_from_the_right_register(architecture: Architecture, tracer: Tracer) -> None:
    assert tracer.read_register(1, architecture.instruction_pointer) == INSTRUCTION_POINTER


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
def test_each_unusable_socket_path_has_its_own_reason(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "file").write_text("")
    problem = socket_problem(tmp_path, path)
    assert problem is not None
    assert problem.code == code


@given(st.binary(max_size=120))
def test_any_socket_path_is_judged(path: bytes) -> None:
    socket_problem(Path("/nowhere"), os.fsdecode(path))


def test_every_reason_is_documented_with_its_remedy() -> None:
    text = (ROOT / "docs" / "host-profilers" / "inspect.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", text, re.M))
    assert rows == {code: level.value for code, (level, _, _) in CATALOGUE.items()}


def test_every_reason_that_the_code_gives_is_in_the_catalogue() -> None:
    folder = ROOT / "splunk_profiler" / "inspector"
    given_codes = set()
    for name in ("host", "sockets", "library_search", "thread_reader", "reader"):
        text = (folder / f"{name}.py").read_text("utf-8")
        given_codes |= set(re.findall(r'"((?:[a-z0-9]+-)+[a-z0-9]+)"', text))
    given_codes -= {"utf-8"}
    assert given_codes == set(CATALOGUE)
