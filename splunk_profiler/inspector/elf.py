"""What an ELF file says about the symbols that host profilers look for: the only user of pyelftools.

Owns no thread. Must not import anything of the package but the inspector's errors.
"""

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
    """A PT_LOAD segment: where it belongs and where in the file it is."""

    address: int
    offset: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol that the file defines."""

    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """A relocation of a named symbol."""

    kind: int
    symbol: str
    address: int


@dataclass(frozen=True, slots=True)
class Image:
    """An ELF file, as far as it matters here.

    Attributes:
        has_sections: whether there are section headers.
        segments: what is loaded.
        exported: those of the wanted symbols that ``.dynsym`` defines.
        internal: those that only ``.symtab`` has.
        relocations: of the wanted symbols.
        tls_size: bytes of the thread-local segment.
        tls_alignment: its alignment.
    """

    has_sections: bool
    segments: tuple[Segment, ...]
    exported: dict[str, Symbol]
    internal: frozenset[str]
    relocations: tuple[Relocation, ...]
    tls_size: int
    tls_alignment: int

    def bias(self, start: int, offset: int, page_bytes: int) -> int:
        """What the loader added to the file's addresses, from where a mapping of it lies.

        Raises:
            MalformedError: no segment begins at that offset.
        """
        for segment in self.segments:
            if segment.offset // page_bytes * page_bytes == offset:
                return start - segment.address // page_bytes * page_bytes
        raise MalformedError(f"no loaded segment of the file begins at offset {offset:#x}")


def contains_any(file: BinaryIO, names: Collection[bytes]) -> bool:
    """Whether any of `names` stands anywhere in the file: a quick look before it is parsed."""
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(name) >= 0 for name in names)
    except (ValueError, OSError):  # empty, or no file that can be mapped
        return False


def read_image(file: BinaryIO, names: Collection[str]) -> Image:
    """The file's facts about the symbols called `names`.

    Raises:
        MalformedError: it is no ELF file, or a broken one.
    """
    try:
        return _read_image(file, names)
    except MalformedError:
        raise
    except Exception as error:  # a strange file makes the parser fail in many ways
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
        # Lengths are checked before anything is walked: a broken file may state any.
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
