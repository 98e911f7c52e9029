"""Finds what a process publishes: the libraries a host profiler would recognise, and where their variables are.

As host profilers do: mapped path → file → symbols and relocations → load bias → TLS descriptor in memory. Runs on the
caller's thread. Must not import anything of the package but the inspector's own modules.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from splunk_profiler.inspector import elf
from splunk_profiler.inspector.architecture import Architecture
from splunk_profiler.inspector.errors import MalformedError, UnreadableError
from splunk_profiler.inspector.layouts import decode_descriptor
from splunk_profiler.inspector.maps import LIBRARY_PATTERNS, Mapping, code_mapping_by_path, runs_musl
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import Interface, Library, Problem, TlsKind


@dataclass(frozen=True, slots=True)
class _SymbolNames:
    """The two symbols of an interface and their sizes; a size of None is not specified."""

    thread_local: str
    thread_local_bytes: int | None
    process_wide: str
    process_wide_bytes: int


_SYMBOLS = {
    Interface.ELASTIC: _SymbolNames(
        "elastic_apm_profiling_correlation_tls_v1", 8, "elastic_apm_profiling_correlation_process_storage_v1", 8
    ),
    Interface.LABELS: _SymbolNames("custom_labels_current_set", None, "custom_labels_abi_version", 4),
}
_ALL_SYMBOLS = frozenset(name for names in _SYMBOLS.values() for name in (names.thread_local, names.process_wide))
_ABI_VERSION = 1


@dataclass(frozen=True, slots=True)
class ThreadLocalVariable:
    """Where a thread-local variable is: at an offset from the thread pointer, or in a module's block."""

    offset: int | None
    module: int = 0
    module_offset: int = 0


@dataclass(frozen=True, slots=True)
class Publisher:
    """A library that publishes an interface.

    Attributes:
        library: what is told about it.
        variable: its thread-local pointer; None if no reader could find it.
        process_wide: the address of its other symbol; None if it has none.
    """

    library: Library
    variable: ThreadLocalVariable | None
    process_wide: int | None


@dataclass(slots=True)
class SearchResult:
    """What was found: at most one publisher of each interface, and what is wrong with them."""

    publishers: dict[Interface, Publisher] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class PublisherFinder:
    """Finds publishers of `interfaces` in the process below `proc_path` (``/proc/TID``), and caches its files."""

    def __init__(
        self, proc_path: Path, memory: Memory, architecture: Architecture, interfaces: Collection[Interface]
    ) -> None:
        self._proc_path = proc_path
        self._interfaces = interfaces
        self._memory = memory
        self._architecture = architecture
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._is_dtv_layout_known = True
        self._images: dict[tuple[int, int, int, int], elf.Image | None] = {}

    def search(self, mappings: Sequence[Mapping], program: str) -> SearchResult:
        """Look through the mapped files; `program` is the path of the main executable."""
        code = code_mapping_by_path(mappings)
        self._is_dtv_layout_known = not runs_musl(mappings)
        search = SearchResult()
        for interface in self._interfaces:
            pattern = LIBRARY_PATTERNS[interface]
            named = [mapping for path, mapping in code.items() if pattern.search(path)]
            if (
                interface is Interface.LABELS
                and not named
                and program in code
                and self._exports_symbol(code[program], interface)
            ):
                named = [code[program]]
            if not named:
                search.problems.append(self._missing_library_problem(interface, code))
                continue
            if len(named) > 1:
                search.problems.append(Problem(interface, "several-libraries", ", ".join(one.path for one in named)))
            self._resolve(interface, named[0], named[0].path == program, search)
        return search

    def _resolve(self, interface: Interface, mapping: Mapping, is_program: bool, search: SearchResult) -> None:
        def problem(code: str, detail: str = "") -> None:
            search.problems.append(Problem(interface, code, detail))

        def found(kind: TlsKind, variable: ThreadLocalVariable | None, process_wide: int | None = None) -> None:
            offset = variable.offset if variable else None
            library = Library(interface, mapping.path, kind, offset)
            search.publishers[interface] = Publisher(library, variable, process_wide)

        found(TlsKind.UNKNOWN, None)
        try:
            image = self._load_image(mapping)
            if image is None:
                problem("file-gone" if mapping.deleted else "file-unreadable", mapping.path)
                return
            bias = image.bias(mapping.start, mapping.offset, self._page_bytes)
        except MalformedError as error:
            problem("file-malformed", f"{mapping.path}: {error}")
            return
        for code, detail in _symbol_problems(interface, image):
            problem(code, detail)
        names = _SYMBOLS[interface]
        process_wide_symbol = image.exported.get(names.process_wide)
        process_wide = None if process_wide_symbol is None else bias + process_wide_symbol.value
        if interface is Interface.LABELS and process_wide is not None:
            version = self._read_abi_version(process_wide)
            if version != _ABI_VERSION:
                problem("abi-version", f"it is {version}")
                return
        if names.thread_local not in image.exported:
            found(TlsKind.UNKNOWN, None, process_wide)
        elif is_program:
            value = image.exported[names.thread_local].value
            offset = self._architecture.executable_offset(value, image.tls_size, image.tls_alignment)
            found(TlsKind.STATIC, ThreadLocalVariable(offset), process_wide)
        else:
            kind, variable, problem_arguments = self._find_variable(names.thread_local, image, bias)
            found(kind, variable, process_wide)
            if problem_arguments:
                problem(*problem_arguments)

    def _find_variable(
        self, name: str, image: elf.Image, bias: int
    ) -> tuple[TlsKind, ThreadLocalVariable | None, tuple[str, str] | None]:
        kinds = {found.kind: found for found in image.relocations if found.symbol == name}
        descriptor = kinds.get(self._architecture.tlsdesc_relocation)
        if descriptor is None:
            others = [text for kind, text in self._architecture.other_dialects.items() if kind in kinds]
            return TlsKind.UNKNOWN, None, ("tls-dialect", others[0] if others else "no relocation names it")
        try:
            _entry, argument = decode_descriptor(self._memory.read([(bias + descriptor.address, 16)])[0])
            offset = self._architecture.static_offset(argument)
            if offset is not None:
                return TlsKind.STATIC, ThreadLocalVariable(offset), None
            module, module_offset = decode_descriptor(self._memory.read([(argument, 16)])[0])
        except UnreadableError as error:
            return TlsKind.UNKNOWN, None, ("tls-unresolved", str(error))
        variable = ThreadLocalVariable(None, module, module_offset) if self._is_dtv_layout_known else None
        return TlsKind.DYNAMIC, variable, ("tls-dynamic", "")

    def _read_abi_version(self, address: int) -> int | None:
        try:
            return int.from_bytes(self._memory.read([(address, 4)])[0], "little")
        except UnreadableError:
            return None

    def _missing_library_problem(self, interface: Interface, code: dict[str, Mapping]) -> Problem:
        for path, mapping in code.items():
            if self._exports_symbol(mapping, interface):
                return Problem(interface, "library-name", path)
        return Problem(interface, "library-not-loaded")

    def _exports_symbol(self, mapping: Mapping, interface: Interface) -> bool:
        try:
            image = self._load_image(mapping)
        except MalformedError:
            return False
        names = _SYMBOLS[interface]
        return image is not None and names.thread_local in image.exported

    def _load_image(self, mapping: Mapping) -> elf.Image | None:
        """The file's facts; None if it cannot be opened, or has neither the name nor the symbols."""
        try:
            file = self._open_file(mapping)
        except OSError:
            return None
        with file:
            file_stat = os.fstat(file.fileno())
            key = (file_stat.st_dev, file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)
            if key not in self._images:
                named = any(pattern.search(mapping.path) for pattern in LIBRARY_PATTERNS.values())
                # Most files have nothing to do with this; looking for the names is much quicker than parsing.
                read = named or elf.contains_any(file, [name.encode() for name in _ALL_SYMBOLS])
                self._images[key] = elf.read_image(file, _ALL_SYMBOLS) if read else None
            return self._images[key]

    def _open_file(self, mapping: Mapping) -> BinaryIO:
        if mapping.deleted:
            # Only CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE open these; host profilers have them.
            return (self._proc_path / "map_files" / f"{mapping.start:x}-{mapping.end:x}").open("rb")
        return Path(f"{self._proc_path}/root{mapping.path}").open("rb")


def _symbol_problems(interface: Interface, image: elf.Image) -> list[tuple[str, str]]:
    if not image.has_sections:
        return [("no-section-headers", "")]
    names = _SYMBOLS[interface]
    found = []
    for name, size in ((names.thread_local, names.thread_local_bytes), (names.process_wide, names.process_wide_bytes)):
        symbol = image.exported.get(name)
        if symbol is None:
            found.append(("symbol-hidden" if name in image.internal else "symbol-missing", name))
        elif size is not None and symbol.size != size:
            found.append(("symbol-size", f"{name} has {symbol.size} bytes instead of {size}"))
    others = [other.thread_local for one, other in _SYMBOLS.items() if one is not interface]
    if any(name in image.exported for name in others):
        found.append(("both-interfaces", ""))
    return found
