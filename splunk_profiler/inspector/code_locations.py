"""Where in its code a thread was, told in a way that holds for every process and every start: file and offset.

Pure. Must not import anything of the package but the inspector's own modules.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from splunk_profiler.inspector.maps import Mapping

PAGE_BYTES = 4096
"""Offsets are rounded down to this, so that few places stand for a whole program."""

_ID_BYTES = 16
_ANONYMOUS = "[anonymous]"


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """A page of code.

    Attributes:
        file: path as the process sees it; for code outside of files the kernel's name of the memory (``[vdso]``).
        offset: in the file, in bytes, rounded down to `PAGE_BYTES`; 0 outside of files, where addresses say nothing.
    """

    file: str
    offset: int

    @property
    def stack_trace_id(self) -> str:
        """A stable id of 16 bytes, as 32 hexadecimal digits: equal exactly for equal places."""
        text = os.fsencode(self.file) + b"\0" + self.offset.to_bytes(8, "little")
        return blake2b(text, digest_size=_ID_BYTES).hexdigest()


class CodeMap:
    """Turns addresses of one process into places.

    Args:
        code: its mappings that hold code, by ascending address.
    """

    def __init__(self, code: Sequence[Mapping]) -> None:
        self._code = code
        self._starts = [mapping.start for mapping in code]

    def location(self, address: int) -> CodeLocation | None:
        """The place of an instruction; None if no code is known to lie there."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._code[at].end:
            return None
        mapping = self._code[at]
        if not mapping.path.startswith("/"):
            return CodeLocation(mapping.path or _ANONYMOUS, 0)
        offset = mapping.offset + address - mapping.start
        return CodeLocation(mapping.path, offset // PAGE_BYTES * PAGE_BYTES)


UNKNOWN_LOCATION = CodeLocation(_ANONYMOUS, 0)
"""Code that was unmapped as soon as the thread had left it."""
