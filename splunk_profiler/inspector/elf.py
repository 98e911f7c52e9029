"""Facts of ELF files about the symbols of host profilers. The only user of pyelftools."""

from __future__ import annotations

import mmap
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, BinaryIO

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from splunk_profiler.inspector.errors import MalformedError

_MAX_SECTIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD segment: its address and its offset in the file."""

    address: int
    offset: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol that the file defines: its value and its size in bytes."""

    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """A relocation of a named symbol at an address."""

    kind: int
    symbol: str
    address: int


@dataclass(frozen=True, slots=True)
class Image:
    """The facts of an ELF file about the wanted symbols.

    Attributes:
        segments: the PT_LOAD segments.
        exported: wanted symbols that ``.dynsym`` defines.
        internal: wanted symbols that only ``.symtab`` has.
        tls_size: bytes of the thread-local segment; `tls_alignment` is in bytes, too.
    """

    has_sections: bool
    segments: tuple[Segment, ...]
    exported: dict[str, Symbol]
    internal: frozenset[str]
    relocations: tuple[Relocation, ...]
    tls_size: int
    tls_alignment: int

    def bias(self, start: int, offset: int, page_bytes: int) -> int:
        """Return what the loader added to the addresses of a file mapped from `offset` at `start`.

        Raises:
            MalformedError: no segment begins at that offset.
        """
        for segment in self.segments:
            if segment.offset // page_bytes * page_bytes == offset:
                return start - segment.address // page_bytes * page_bytes
        raise MalformedError(f"no loaded segment of the file begins at offset {offset:#x}")


def contains_any(file: BinaryIO, names: Collection[bytes]) -> bool:
    """Return True if the file contains any of `names`; much quicker than to parse it."""
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(name) >= 0 for name in names)
    except (ValueError, OSError):  # the file is empty or cannot be mapped
        return False


def read_image(file: BinaryIO, names: Collection[str]) -> Image:
    """Parse the file's facts about the symbols called `names`.

    Raises:
        MalformedError: it is no ELF file, or a broken one.
    """
    try:
        return _read_image(file, names)
    except MalformedError:
        raise
    except Exception as error:  # the parser raises many types for a broken file
        raise MalformedError(f"it is not an ELF file that can be understood ({type(error).__name__})") from error


def _read_image(file: BinaryIO, names: Collection[str]) -> Image:
    elf: Any = ELFFile(file)
    size = file.seek(0, 2)
    if elf.num_sections() > _MAX_SECTIONS:
        raise MalformedError("it states more sections than a file has")
    exported: dict[str, Symbol] = {}
    internal: set[str] = set()
    relocations = []
    for section in elf.iter_sections():
        # A broken file may state any length; the parser would follow it beyond the end of the file.
        if section["sh_type"] == "SHT_NOBITS" or section["sh_offset"] + section["sh_size"] > size:
            continue
        if isinstance(section, SymbolTableSection):
            for symbol in section.iter_symbols():
                if symbol.name in names and symbol["st_shndx"] != "SHN_UNDEF":
                    if section["sh_type"] == "SHT_DYNSYM":
                        exported[symbol.name] = Symbol(symbol["st_value"], symbol["st_size"])
                    else:
                        internal.add(symbol.name)
        elif isinstance(section, RelocationSection) and section.is_RELA():
            relocations += _relocations(elf, section, names)
    tls_segments = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_TLS"]
    return Image(
        has_sections=elf.num_sections() > 0,
        segments=tuple(
            Segment(segment["p_vaddr"], segment["p_offset"])
            for segment in elf.iter_segments()
            if segment["p_type"] == "PT_LOAD"
        ),
        exported=exported,
        internal=frozenset(internal - exported.keys()),
        relocations=tuple(relocations),
        tls_size=tls_segments[0]["p_memsz"] if tls_segments else 0,
        tls_alignment=tls_segments[0]["p_align"] if tls_segments else 1,
    )


def _relocations(elf: Any, section: Any, names: Collection[str]) -> list[Relocation]:
    symbols = elf.get_section(section["sh_link"])
    if not isinstance(symbols, SymbolTableSection):
        return []
    found = []
    for relocation in section.iter_relocations():
        symbol_index = relocation["r_info_sym"]
        name = symbols.get_symbol(symbol_index).name if symbol_index else ""
        if name in names:
            found.append(Relocation(relocation["r_info_type"], name, relocation["r_offset"]))
    return found
