"""Sparse ELF files of 1 GiB whose section headers state what a test wants. Imports nothing of the package."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

FILE_BYTES = 1 << 30
STRINGS_OFFSET = 1 << 12
STRINGS = b"\0custom_labels_current_set\0"

SYMBOLS, STRING_TABLE, RELOCATIONS, DYNAMIC_SYMBOLS, GNU_HASH = 2, 3, 4, 11, 0x6FFFFFF6  # types of sections


class Section(NamedTuple):
    """A section; `link` is the number of that with its names or its symbols."""

    kind: int
    offset: int
    size: int
    link: int = 0


NAMES = Section(STRING_TABLE, STRINGS_OFFSET, len(STRINGS))


def write_elf(path: Path, *sections: Section, segments: tuple[int, int] = (56, 1)) -> None:
    """Write a file with one segment; `segments` are the size and the number of their headers, as it states them."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    counts = (64, *segments, 64, len(sections), 0)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, STRINGS_OFFSET + len(STRINGS), 0, *counts)
    load_segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, FILE_BYTES, FILE_BYTES, 4096)
    with path.open("wb") as file:
        file.write(header + load_segment)
        file.seek(STRINGS_OFFSET)
        file.write(STRINGS)
        for kind, offset, size, link in sections:
            file.write(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, 24))
        file.truncate(FILE_BYTES)
