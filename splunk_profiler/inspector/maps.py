"""A parser of ``/proc/PID/maps``, and the names by which host profilers recognise publishers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from splunk_profiler.inspector.model import Interface

_LINE_PATTERN = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<rights>\S{4}) (?P<offset>[0-9a-f]+) \S+ \d+ *(?P<path>.*)"
)
_DELETED_SUFFIX = " (deleted)"

# The patterns of host profilers; neither is anchored at its end.
LIBRARY_PATTERNS = {
    Interface.ELASTIC: re.compile(r".*/elastic-jvmti-linux-([\w-]*)\.so"),
    Interface.LABELS: re.compile(r".*/(libcustomlabels.*\.so|customlabels\.node)"),
}
_PYTHON_PATTERN = re.compile(r"/(lib)?python\d|/libpypy|/pypy")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapped part of the address space.

    Attributes:
        end: address after the last.
        offset: offset of its start in the file.
        path: path as the process sees it; outside of files the kernel's name, which may be empty.
        deleted: True if the file was deleted from that path.
    """

    start: int
    end: int
    executable: bool
    offset: int
    path: str
    deleted: bool


def parse_maps(text: str) -> list[Mapping]:
    """Return the mappings in `text`, by ascending address."""
    matches = (_LINE_PATTERN.fullmatch(line) for line in text.split("\n"))
    return [
        Mapping(
            start=int(match["start"], 16),
            end=int(match["end"], 16),
            executable="x" in match["rights"],
            offset=int(match["offset"], 16),
            path=match["path"].removesuffix(_DELETED_SUFFIX).replace("\\012", "\n"),
            deleted=match["path"].endswith(_DELETED_SUFFIX),
        )
        for match in matches
        if match is not None
    ]


def code_mapping_by_path(mappings: Iterable[Mapping]) -> dict[str, Mapping]:
    """Return the first executable mapping of each file."""
    found: dict[str, Mapping] = {}
    for mapping in mappings:
        if mapping.executable and mapping.path.startswith("/"):
            found.setdefault(mapping.path, mapping)
    return found


def runs_musl(mappings: Iterable[Mapping]) -> bool:
    """Return True if the C library is musl, whose module table (DTV) differs from glibc's."""
    return any("/ld-musl-" in mapping.path or "/libc.musl-" in mapping.path for mapping in mappings)


def runs_python(mappings: Iterable[Mapping]) -> bool:
    """Return True if the program or a library is a Python interpreter."""
    return any(_PYTHON_PATTERN.search(mapping.path) for mapping in mappings if mapping.executable)
