"""Facts of ELF files about the symbols of host profilers. The only user of pyelftools."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from splunk_profiler.inspector.errors import MalformedError

_MAX_SECTIONS = 1 << 16
_CHUNK_BYTES = 1 << 20


class Symbol(NamedTuple):
    """A symbol that the file defines: its value and its size in bytes."""

    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Image:
    """The facts of an ELF file about the wanted symbols.

    Attributes:
        segments: addresses of the PT_LOAD segments by their offsets in the file, both rounded down to pages.
        exported: wanted symbols that ``.dynsym`` defines.
        internal: wanted symbols that only ``.symtab`` has.
        relocations: addresses of the relocations of each wanted symbol, by their kinds.
        tls_size: bytes of the thread-local segment; `tls_alignment` is in bytes, too.
    """

    has_sections: bool
    segments: dict[int, int]
    exported: dict[str, Symbol]
    internal: frozenset[str]
    relocations: dict[str, dict[int, int]]
    tls_size: int
    tls_alignment: int

    def bias(self, start: int, offset: int) -> int:
        """Return what the loader added to the addresses of a file mapped from `offset` at `start`.

        Raises:
            MalformedError: no segment begins at that offset.
        """
        if offset not in self.segments:
            raise MalformedError(f"no loaded segment of the file begins at offset {offset:#x}")
        return start - self.segments[offset]


def contains_any(file: BinaryIO, names: Collection[bytes]) -> bool:
    """Return True if the file contains any of `names`; much quicker than to parse it."""
    overlap = max(map(len, names)) - 1
    data = b""
    # The file is not mapped: the process may truncate it, which would end this one by SIGBUS.
    while chunk := file.read(_CHUNK_BYTES):
        data = data[-overlap:] + chunk
        if any(name in data for name in names):
            return True
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
    # A broken file may state any length; the parser would follow it beyond the end of the file.
    sections = [
        section
        for section in elf.iter_sections()
        if section["sh_type"] != "SHT_NOBITS" and section["sh_offset"] + section["sh_size"] <= size
    ]
    exported: dict[str, Symbol] = {}
    internal: set[str] = set()
    for table in sections:
        for symbol in table.iter_symbols() if isinstance(table, SymbolTableSection) else ():
            if symbol.name in names and symbol["st_shndx"] != "SHN_UNDEF":
                if table["sh_type"] == "SHT_DYNSYM":
                    exported[symbol.name] = Symbol(symbol["st_value"], symbol["st_size"])
                else:
                    internal.add(symbol.name)
    segments: dict[int, int] = {}
    for segment in elf.iter_segments("PT_LOAD"):
        segments.setdefault(_page_of(segment["p_offset"]), _page_of(segment["p_vaddr"]))
    tls_segment = next(elf.iter_segments("PT_TLS"), {"p_memsz": 0, "p_align": 1})
    return Image(
        has_sections=elf.num_sections() > 0,
        segments=segments,
        exported=exported,
        internal=frozenset(internal - exported.keys()),
        relocations=_relocations(elf, sections, names),
        tls_size=tls_segment["p_memsz"],
        tls_alignment=tls_segment["p_align"],
    )


def _page_of(position: int) -> int:
    return position // mmap.PAGESIZE * mmap.PAGESIZE


def _relocations(elf: Any, sections: Iterable[Any], names: Collection[str]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for section in sections:
        if not (isinstance(section, RelocationSection) and section.is_RELA()):
            continue
        symbols = elf.get_section(section["sh_link"])
        for relocation in section.iter_relocations() if isinstance(symbols, SymbolTableSection) else ():
            symbol_index = relocation["r_info_sym"]
            name = symbols.get_symbol(symbol_index).name if symbol_index else ""
            if name in found:
                found[name][relocation["r_info_type"]] = relocation["r_offset"]
    return found
