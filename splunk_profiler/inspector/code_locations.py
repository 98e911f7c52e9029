"""Code locations (file and offset) that are the same in every process and after every start."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from splunk_profiler.inspector.maps import Mapping

PAGE_BYTES = 4096
"""Granularity of offsets; a program has few locations."""

_ANONYMOUS = "[anonymous]"


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """A page of code.

    Attributes:
        file: path as the process sees it; outside of files the kernel's name of the memory (``[vdso]``).
        offset: bytes into the file, a multiple of `PAGE_BYTES`; 0 outside of files.
    """

    file: str
    offset: int

    @property
    def stack_trace_id(self) -> str:
        """A stable id of 16 bytes, as 32 hexadecimal digits; equal locations have equal ids."""
        text = os.fsencode(self.file) + b"\0" + self.offset.to_bytes(8, "little")
        return blake2b(text, digest_size=16).hexdigest()


class CodeMap:
    """The code of one process, from its mappings by ascending address."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        self._code = [mapping for mapping in mappings if mapping.executable]
        self._starts = [mapping.start for mapping in self._code]

    def location(self, address: int) -> CodeLocation | None:
        """Return the location of an instruction; None if no known code lies there."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._code[at].end:
            return None
        mapping = self._code[at]
        if not mapping.path.startswith("/"):
            return CodeLocation(mapping.path or _ANONYMOUS, 0)
        offset = mapping.offset + address - mapping.start
        return CodeLocation(mapping.path, offset // PAGE_BYTES * PAGE_BYTES)


UNKNOWN_LOCATION = CodeLocation(_ANONYMOUS, 0)
"""Location of code that is no longer mapped."""
