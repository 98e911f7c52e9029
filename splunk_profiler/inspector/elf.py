"""Facts of ELF files about the symbols of host profilers. The only user of pyelftools.

A process can map a file of any content and size, so the work for one is bounded. pyelftools parses its headers, of
which there may be so many. Tables are read as bytes, of which a `ReadBudget` has so many for all files together.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from splunk_profiler.inspector.architecture import ARCHITECTURES
from splunk_profiler.inspector.errors import MalformedError

_MAX_HEADERS = 1 << 12  # linkers make some tens
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_RELOCATION = struct.Struct("<QIIq")  # address, kind, symbol, addend
_Read = Callable[[Mapping[str, int]], bytes]
_TLS_KINDS = frozenset(kind for one in ARCHITECTURES for kind in (one.tlsdesc_relocation, *one.other_dialects))


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
        relocations: addresses of the thread-local relocations of each wanted symbol, by their kinds.
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


class ReadBudget:
    """The number of bytes that may still be read of tables."""

    def __init__(self, size: int) -> None:
        self._size = size

    def read(self, file: BinaryIO, section: Mapping[str, int]) -> bytes:
        """Return the content of a section.

        Raises:
            MalformedError: it is larger than what is left, or ends after the file.
        """
        size = section["sh_size"]
        if size > self._size:
            raise MalformedError(f"a table of {size} bytes is more than is read of the files of a process")
        self._size -= size
        file.seek(section["sh_offset"])
        content = file.read(size)
        if len(content) < size:
            raise MalformedError("a section ends after the file")
        return content


@dataclass(frozen=True, slots=True)
class _SymbolTable:
    """A table of symbols as bytes, with their names. Without a wanted name among these it has no symbols."""

    symbols: bytes
    strings: bytes
    wanted: tuple[bytes, ...]  # with their final NUL

    def name(self, offset: int) -> str:
        """Return the name at `offset` if it is wanted, else an empty text."""
        if not self.strings.startswith(self.wanted, offset):
            return ""
        return self.strings[offset : self.strings.index(b"\0", offset)].decode()

    def name_of(self, number: int) -> str:
        """Return the name of a symbol like `name`."""
        return self.name(_SYMBOL.unpack_from(self.symbols, number * _SYMBOL.size)[0])

    def defined(self) -> Iterator[tuple[str, Symbol]]:
        """Yield the wanted symbols that the file defines."""
        for name_offset, _, _, section, value, size in _SYMBOL.iter_unpack(self.symbols):
            if section and (name := self.name(name_offset)):
                yield name, Symbol(value, size)


def read_image(file: BinaryIO, names: Collection[str], budget: ReadBudget) -> Image:
    """Parse the file's facts about the symbols called `names`.

    Raises:
        MalformedError: it is no ELF file, a broken one, or one whose tables exceed the budget.
    """
    try:
        return _read_image(file, names, budget)
    except MalformedError:
        raise
    except Exception as error:  # the parser raises many types for a broken file
        raise MalformedError(f"it is not an ELF file that can be understood ({type(error).__name__})") from error


def _read_image(file: BinaryIO, names: Collection[str], budget: ReadBudget) -> Image:
    elf: Any = ELFFile(file)
    if elf.elfclass != 64 or not elf.little_endian:
        raise MalformedError("it is not a 64-bit file of the architectures of the interfaces")
    sections, segments = _headers(elf, "sh", elf.structs.Elf_Shdr), _headers(elf, "ph", elf.structs.Elf_Phdr)
    read = partial(budget.read, file)
    wanted = tuple(name.encode() + b"\0" for name in names)
    tables = {
        number: _read_symbols(read, section, sections[section["sh_link"]], wanted)
        for number, section in enumerate(sections)
        if section["sh_type"] in ("SHT_DYNSYM", "SHT_SYMTAB")
    }
    defined: dict[str, dict[str, Symbol]] = {"SHT_DYNSYM": {}, "SHT_SYMTAB": {}}
    for number, table in tables.items():
        defined[sections[number]["sh_type"]].update(table.defined())
    tls_segment = next((one for one in segments if one["p_type"] == "PT_TLS"), {"p_memsz": 0, "p_align": 1})
    load_segments: dict[int, int] = {}
    for segment in segments:
        if segment["p_type"] == "PT_LOAD":
            load_segments.setdefault(_page_of(segment["p_offset"]), _page_of(segment["p_vaddr"]))
    return Image(
        has_sections=bool(sections),
        segments=load_segments,
        exported=defined["SHT_DYNSYM"],
        internal=frozenset(defined["SHT_SYMTAB"].keys() - defined["SHT_DYNSYM"].keys()),
        relocations=_read_relocations(read, sections, tables, names),
        tls_size=tls_segment["p_memsz"],
        tls_alignment=tls_segment["p_align"],
    )


def _headers(elf: Any, kind: str, layout: Any) -> list[Any]:
    """Return the headers of sections (``sh``) or segments (``ph``).

    The objects that pyelftools makes of sections and segments would read them whole.
    """
    start, size, count = elf[f"e_{kind}off"], elf[f"e_{kind}entsize"], elf[f"e_{kind}num"]
    if count > _MAX_HEADERS:
        raise MalformedError(f"it states {count} sections or segments")
    return [struct_parse(layout, elf.stream, start + number * size) for number in range(count if start else 0)]


def _read_symbols(read: _Read, section: Any, strings: Any, wanted: tuple[bytes, ...]) -> _SymbolTable:
    content = read(strings)
    is_wanted = any(name in content for name in wanted)  # quick, and enough for most files
    return _SymbolTable(read(section) if is_wanted else b"", content, wanted)


def _read_relocations(
    read: _Read, sections: Iterable[Any], tables: Mapping[int, _SymbolTable], names: Iterable[str]
) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for section in sections:
        table = tables.get(section["sh_link"])
        if section["sh_type"] != "SHT_RELA" or table is None or not table.symbols:
            continue
        for address, kind, symbol, _ in _RELOCATION.iter_unpack(read(section)):
            if kind in _TLS_KINDS and (name := table.name_of(symbol)):
                found[name][kind] = address
    return found


def _page_of(position: int) -> int:
    return position // mmap.PAGESIZE * mmap.PAGESIZE
