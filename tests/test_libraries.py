"""The two published libraries as files: what a host profiler finds in them before it reads a process.

Each file is looked at twice, as installed and as shipped in the wheel. The names and numbers are written out here,
apart from the sources: docs/host-profilers/abi.md has the reasons.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from splunk_profiler import _context
from splunk_profiler.host_profilers.libraries import elastic_library, labels_library

R_X86_64_TLSDESC, R_AARCH64_TLSDESC = 36, 1031
TLSDESC = {"x86_64": R_X86_64_TLSDESC, "aarch64": R_AARCH64_TLSDESC}[platform.machine()]
ROOT = Path(__file__).resolve().parent.parent
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
ELASTIC_NAME = f"elastic-jvmti-linux-{platform.machine()}.so"
LABELS_NAME = "libcustomlabels.so"


@dataclass(frozen=True)
class Published:
    """Requirements on one library. Objects: name → (type, size in bytes)."""

    file: str
    looked_for: str  # the regular expression by which readers find the mapping
    objects: dict[str, tuple[str, int]]
    thread_local: str
    accessor: str


ELASTIC = Published(
    file=ELASTIC_NAME,
    looked_for=r".*/elastic-jvmti-linux-([\w-]*)\.so",
    objects={
        "elastic_apm_profiling_correlation_tls_v1": ("STT_TLS", 8),
        "elastic_apm_profiling_correlation_process_storage_v1": ("STT_OBJECT", 8),
    },
    thread_local="elastic_apm_profiling_correlation_tls_v1",
    accessor="splunk_profiler_elastic_slot",
)
LABELS = Published(
    file=LABELS_NAME,
    looked_for=r".*/libcustomlabels.*\.so",
    objects={"custom_labels_abi_version": ("STT_OBJECT", 4), "custom_labels_current_set": ("STT_TLS", 8)},
    thread_local="custom_labels_current_set",
    accessor="splunk_profiler_labels_slot",
)
PUBLISHED = pytest.mark.parametrize("library", [ELASTIC, LABELS], ids=lambda library: library.file)


@pytest.fixture(params=["installed", "wheel"])
def files(request: pytest.FixtureRequest) -> dict[str, bytes]:
    """All shared objects of the package by file name."""
    if request.param == "installed":
        return {path.name: path.read_bytes() for path in Path(_context.__file__).parent.glob("*.so")}
    wheel: zipfile.ZipFile = request.getfixturevalue("wheel")
    return {name.rpartition("/")[2]: wheel.read(name) for name in wheel.namelist() if name.endswith(".so")}


def _elf(content: bytes) -> ELFFile:
    return ELFFile(io.BytesIO(content))


def _defined(elf: ELFFile) -> dict[str, Any]:
    """The dynamic symbols that the file defines."""
    table = elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    return {symbol.name: symbol for symbol in table.iter_symbols() if symbol.name and symbol["st_shndx"] != "SHN_UNDEF"}


def _relocated_by_descriptor(elf: ELFFile, kind: int = TLSDESC) -> Iterator[str]:
    """Names of the symbols that a section of relocations addresses by a TLS descriptor."""
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection):
            symbols = elf.get_section(section["sh_link"])
            assert isinstance(symbols, SymbolTableSection)
            for relocation in section.iter_relocations():
                if relocation["r_info_type"] == kind:
                    yield symbols.get_symbol(relocation["r_info_sym"]).name


@PUBLISHED
def test_library_has_the_path_and_name_that_readers_look_for(files: dict[str, bytes], library: Published) -> None:
    assert [name for name in files if re.fullmatch(library.looked_for, f"/splunk_profiler/{name}")] == [library.file]


@PUBLISHED
def test_exactly_the_objects_of_the_abi_and_the_accessor_are_exported(
    files: dict[str, bytes], library: Published
) -> None:
    defined = _defined(_elf(files[library.file]))
    found = {name: (symbol["st_info"]["type"], symbol["st_size"]) for name, symbol in defined.items()}
    accessor = found.pop(library.accessor)
    assert accessor[0] == "STT_FUNC"
    assert found == library.objects
    assert {symbol["st_other"]["visibility"] for symbol in defined.values()} == {"STV_DEFAULT"}
    assert {symbol["st_info"]["bind"] for symbol in defined.values()} == {"STB_GLOBAL"}


@PUBLISHED
def test_thread_local_pointer_has_one_tls_descriptor_with_its_name(files: dict[str, bytes], library: Published) -> None:
    assert list(_relocated_by_descriptor(_elf(files[library.file]))) == [library.thread_local]


@PUBLISHED
def test_everything_is_bound_when_the_library_is_loaded(files: dict[str, bytes], library: Published) -> None:
    dynamic = _elf(files[library.file]).get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    flags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}
    assert flags.get("DT_FLAGS", 0) & 0x8, "DF_BIND_NOW"
    assert flags.get("DT_FLAGS_1", 0) & 0x1, "DF_1_NOW"


@PUBLISHED
def test_the_sections_that_readers_walk_are_there(files: dict[str, bytes], library: Published) -> None:
    names = {section.name for section in _elf(files[library.file]).iter_sections()}
    assert {".dynsym", ".dynstr", ".rela.dyn", ".dynamic"} <= names


def test_the_version_of_the_custom_labels_abi_is_the_constant_one(files: dict[str, bytes]) -> None:
    elf = _elf(files[LABELS_NAME])
    symbol = _defined(elf)["custom_labels_abi_version"]
    section = elf.get_section(symbol["st_shndx"])
    start = symbol["st_value"] - section["sh_addr"]
    assert int.from_bytes(section.data()[start : start + 4], "little") == 1
    assert not section["sh_flags"] & 0x1, "SHF_WRITE: it must be constant"


def test_the_package_knows_where_its_libraries_are() -> None:
    installed = Path(_context.__file__).resolve().parent
    assert [elastic_library(), labels_library()] == [installed / ELASTIC_NAME, installed / LABELS_NAME]


def test_no_other_file_of_ours_could_be_taken_for_one_of_the_libraries(files: dict[str, bytes]) -> None:
    published = {name for library in (ELASTIC, LABELS) for name in library.objects}
    exported = {file: published & _defined(_elf(content)).keys() for file, content in files.items()}
    assert {file for file, names in exported.items() if names} == {ELASTIC_NAME, LABELS_NAME}
    assert exported[ELASTIC_NAME].isdisjoint(exported[LABELS_NAME])


def test_the_two_libraries_differ_in_content(files: dict[str, bytes]) -> None:
    assert len({hashlib.sha256(files[name]).digest() for name in (ELASTIC_NAME, LABELS_NAME)}) == 2


def test_the_extensions_export_their_initialisers_and_nothing_else(files: dict[str, bytes]) -> None:
    for file, content in files.items():
        if file not in (ELASTIC_NAME, LABELS_NAME):
            assert list(_defined(_elf(content))) == [f"PyInit_{file.partition('.')[0]}"]


@pytest.mark.skipif(shutil.which(CROSS_COMPILER) is None, reason=f"{CROSS_COMPILER} is not there")
@pytest.mark.parametrize(("name", "library"), [("elastic", ELASTIC), ("custom_labels", LABELS)])
def test_for_aarch64_the_same_objects_are_addressed_by_its_own_descriptors(
    name: str, library: Published, tmp_path: Path
) -> None:
    made = tmp_path / "library.so"
    native = ROOT / "native" / "abi"
    options = ["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-ftls-model=global-dynamic", "-mtls-dialect=desc"]
    link = ["-shared", "-nostdlib", f"-Wl,--version-script={native}/exports/{name}.map", "-Wl,-z,relro,-z,now"]
    subprocess.run([CROSS_COMPILER, *options, *link, "-o", made, native / f"{name}.c"], check=True)
    elf = _elf(made.read_bytes())
    defined = _defined(elf)
    assert elf["e_machine"] == "EM_AARCH64"
    assert list(_relocated_by_descriptor(elf, R_AARCH64_TLSDESC)) == [library.thread_local]
    assert {name: (defined[name]["st_info"]["type"], defined[name]["st_size"]) for name in library.objects} == (
        library.objects
    )
    assert set(defined) == {*library.objects, library.accessor}
