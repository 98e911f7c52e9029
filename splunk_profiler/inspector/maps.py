"""``/proc/PID/maps``: what files are mapped in a process, and which of them a host profiler would take for a publisher.

Owns no thread. Must not import anything of the package but the inspector's own modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from splunk_profiler.inspector.model import Interface

_LINE_PATTERN = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<rights>\S{4}) (?P<offset>[0-9a-f]+) \S+ \d+ *(?P<path>.*)"
)
_DELETED_SUFFIX = " (deleted)"

# As host profilers write them; neither is anchored at its end.
LIBRARY_PATTERNS = {
    Interface.ELASTIC: re.compile(r".*/elastic-jvmti-linux-([\w-]*)\.so"),
    Interface.LABELS: re.compile(r".*/(libcustomlabels.*\.so|customlabels\.node)"),
}
_PYTHON_PATTERN = re.compile(r"/(lib)?python\d|/libpypy|/pypy")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of the address space in which something, as a rule a file, is mapped.

    Attributes:
        start: first address.
        end: address behind the last.
        executable: whether code in it may run.
        offset: where in the file it begins.
        path: of the file, as the process sees it; of other memory the kernel's name for it, which may be empty.
        deleted: whether the file has gone from there.
    """

    start: int
    end: int
    executable: bool
    offset: int
    path: str
    deleted: bool


def parse_maps(text: str) -> list[Mapping]:
    """The file mappings in `text`; lines that are something else are left out."""
    return [mapping for mapping in _parse(text) if mapping.path.startswith("/")]


def parse_code(text: str) -> list[Mapping]:
    """The mappings in `text` that hold code, in files or not, by ascending address."""
    return [mapping for mapping in _parse(text) if mapping.executable]


def _parse(text: str) -> list[Mapping]:
    found = []
    for line in text.splitlines():
        match = _LINE_PATTERN.fullmatch(line)
        if match is None:
            continue
        path = match["path"]
        deleted = path.endswith(_DELETED_SUFFIX)
        if deleted:
            path = path[: -len(_DELETED_SUFFIX)]
        found.append(
            Mapping(
                start=int(match["start"], 16),
                end=int(match["end"], 16),
                executable="x" in match["rights"],
                offset=int(match["offset"], 16),
                path=path.replace("\\012", "\n"),
                deleted=deleted,
            )
        )
    return found


def code_mapping_by_path(mappings: Iterable[Mapping]) -> dict[str, Mapping]:
    """The first executable mapping of each file."""
    found: dict[str, Mapping] = {}
    for mapping in mappings:
        if mapping.executable:
            found.setdefault(mapping.path, mapping)
    return found


def runs_musl(mappings: Iterable[Mapping]) -> bool:
    """Whether the C library is musl, whose table of thread-local modules is not glibc's."""
    return any("/ld-musl-" in mapping.path or "/libc.musl-" in mapping.path for mapping in mappings)


def runs_python(mappings: Iterable[Mapping]) -> bool:
    """Whether an interpreter is among the mapped files, as the program or as a library."""
    return any(_PYTHON_PATTERN.search(mapping.path) for mapping in mappings if mapping.executable)
