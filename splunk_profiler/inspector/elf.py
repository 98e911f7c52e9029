"""Facts of ELF files about the symbols of host profilers.

A process can map files of any content and size. Headers and tables are read as bytes, of which a `ReadBudget` has so
many for all files together.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, NamedTuple

from splunk_profiler.inspector.architecture import ARCHITECTURES
from splunk_profiler.inspector.errors import MalformedError

_MAX_HEADERS = 1 << 12  # linkers make some tens
_STATIC_SYMBOLS, _RELOCATIONS, _DYNAMIC_SYMBOLS = 2, 4, 11  # types of sections: SHT_SYMTAB, SHT_RELA, SHT_DYNSYM
_LOADED, _THREAD_LOCAL = 1, 7  # types of segments: PT_LOAD, PT_TLS
_IDENTIFIER = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<32xQQ6xHHHH")  # offsets of segments and sections; size and number of each
_SECTION = struct.Struct("<4xI16xQQI20x")
_SEGMENT = struct.Struct("<I4xQQ16xQQ")
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_RELOCATION = struct.Struct("<QIIq")  # address, kind, symbol, addend
_Read = Callable[[int, int], bytes]
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
    """The number of bytes that may still be read of headers and tables; each of these counts as a page at least."""

    def __init__(self, size: int) -> None:
        self._size = size

    def read(self, file: BinaryIO, offset: int, size: int) -> bytes:
        """Return that part of a file.

        Raises:
            MalformedError: it is larger than what is left, or ends after the file.
        """
        if size > self._size:
            raise MalformedError(f"a table of {size} bytes is more than is read of the files of a process")
        self._size -= max(size, mmap.PAGESIZE)
        file.seek(offset)
        content = file.read(size)
        if len(content) < size:
            raise MalformedError("a section ends after the file")
        return content


class _Section(NamedTuple):
    """The fields of a section header that this reader needs."""

    type: int
    offset: int
    size: int
    link: int


class _Segment(NamedTuple):
    """The fields of a segment header that this reader needs."""

    type: int
    offset: int
    address: int
    size: int
    alignment: int


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
    except Exception as error:  # of many types, by numbers that lead nowhere
        raise MalformedError(f"it is not an ELF file that can be understood ({type(error).__name__})") from error


def _read_image(file: BinaryIO, names: Collection[str], budget: ReadBudget) -> Image:
    read = partial(budget.read, file)
    header = read(0, _HEADER.size)
    if not header.startswith(_IDENTIFIER):
        raise MalformedError("it is not a 64-bit ELF file of the architectures of the interfaces")
    segments_at, sections_at, segment_size, segment_count, section_size, section_count = _HEADER.unpack(header)
    segments = [*map(_Segment._make, _read_headers(read, _SEGMENT, segments_at, segment_count, segment_size))]
    sections = [*map(_Section._make, _read_headers(read, _SECTION, sections_at, section_count, section_size))]
    wanted = tuple(name.encode() + b"\0" for name in names)
    tables = {
        number: _read_symbols(read, section, sections[section.link], wanted)
        for number, section in enumerate(sections)
        if section.type in (_DYNAMIC_SYMBOLS, _STATIC_SYMBOLS)
    }
    defined: dict[int, dict[str, Symbol]] = {_DYNAMIC_SYMBOLS: {}, _STATIC_SYMBOLS: {}}
    for number, table in tables.items():
        defined[sections[number].type].update(table.defined())
    tls_sizes = [(segment.size, segment.alignment) for segment in segments if segment.type == _THREAD_LOCAL]
    tls_size, tls_alignment = tls_sizes[0] if tls_sizes else (0, 1)
    load_segments: dict[int, int] = {}
    for segment in segments:
        if segment.type == _LOADED:
            load_segments.setdefault(_page_of(segment.offset), _page_of(segment.address))
    return Image(
        has_sections=bool(sections),
        segments=load_segments,
        exported=defined[_DYNAMIC_SYMBOLS],
        internal=frozenset(defined[_STATIC_SYMBOLS].keys() - defined[_DYNAMIC_SYMBOLS].keys()),
        relocations=_read_relocations(read, sections, tables, names),
        tls_size=tls_size,
        tls_alignment=tls_alignment,
    )


def _read_headers(read: _Read, layout: struct.Struct, start: int, count: int, size: int) -> Iterable[tuple[int, ...]]:
    """Return the headers of sections or segments, of which the file says that each has `size` bytes."""
    if not start or not count:
        return ()
    if count > _MAX_HEADERS or size != layout.size:
        raise MalformedError(f"it states {count} sections or segments of {size} bytes")
    return layout.iter_unpack(read(start, count * size))


def _read_symbols(read: _Read, section: _Section, strings: _Section, wanted: tuple[bytes, ...]) -> _SymbolTable:
    content = read(strings.offset, strings.size)
    is_wanted = any(name in content for name in wanted)  # quick, and enough for most files
    return _SymbolTable(read(section.offset, section.size) if is_wanted else b"", content, wanted)


def _read_relocations(
    read: _Read, sections: Iterable[_Section], tables: Mapping[int, _SymbolTable], names: Iterable[str]
) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for section in sections:
        table = tables.get(section.link)
        if section.type != _RELOCATIONS or table is None or not table.symbols:
            continue
        for address, kind, symbol, _ in _RELOCATION.iter_unpack(read(section.offset, section.size)):
            if kind in _TLS_KINDS and (name := table.name_of(symbol)):
                found[name][kind] = address
    return found


def _page_of(position: int) -> int:
    return position // mmap.PAGESIZE * mmap.PAGESIZE
