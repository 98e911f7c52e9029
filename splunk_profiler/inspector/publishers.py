"""Search for the libraries that a host profiler would recognise, and for their variables.

The steps are those of host profilers: mapped path, file, symbols and relocations, load bias, TLS
descriptor in memory. Runs on the caller's thread.
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
from splunk_profiler.inspector.layouts import DESCRIPTOR_BYTES, decode_descriptor
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
    """A place in each thread: `offset` from the thread pointer, or an offset in a module's block."""

    offset: int | None
    module: int = 0
    module_offset: int = 0


@dataclass(frozen=True, slots=True)
class Publisher:
    """A library that publishes an interface.

    Attributes:
        variable: the thread-local pointer; None if no reader could find it.
        process_wide: address of the other symbol; None if there is none.
    """

    library: Library
    variable: ThreadLocalVariable | None
    process_wide: int | None


@dataclass(slots=True)
class SearchResult:
    """The publishers, at most one for each interface, and the problems with them."""

    publishers: dict[Interface, Publisher] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class PublisherFinder:
    """A search for publishers of `interfaces` below ``/proc/TID``, with a cache of parsed files."""

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
        """Search the mapped files; `program` is the path of the main executable."""
        code = code_mapping_by_path(mappings)
        self._is_dtv_layout_known = not runs_musl(mappings)
        result = SearchResult()
        for interface in self._interfaces:
            named = self._named_mappings(interface, code, program)
            if not named:
                result.problems.append(self._missing_library_problem(interface, code))
                continue
            if len(named) > 1:
                result.problems.append(Problem(interface, "several-libraries", ", ".join(one.path for one in named)))
            is_program = named[0].path == program
            result.publishers[interface] = self._resolve(interface, named[0], is_program, result.problems)
        return result

    def _named_mappings(self, interface: Interface, code: dict[str, Mapping], program: str) -> list[Mapping]:
        """Return the files named for the interface; for labels, else a program that exports them."""
        pattern = LIBRARY_PATTERNS[interface]
        named = [mapping for path, mapping in code.items() if pattern.search(path)]
        if named or interface is not Interface.LABELS or program not in code:
            return named
        return [code[program]] if self._exports_symbol(code[program], interface) else []

    def _resolve(self, interface: Interface, mapping: Mapping, is_program: bool, problems: list[Problem]) -> Publisher:
        """Return what is known of the publisher in `mapping`; append its faults to `problems`."""
        unresolved = Publisher(Library(interface, mapping.path, TlsKind.UNKNOWN, None), None, None)
        try:
            image = self._load_image(mapping)
            if image is None:
                problems.append(Problem(interface, "file-gone" if mapping.deleted else "file-unreadable", mapping.path))
                return unresolved
            bias = image.bias(mapping.start, mapping.offset, self._page_bytes)
        except MalformedError as error:
            problems.append(Problem(interface, "file-malformed", f"{mapping.path}: {error}"))
            return unresolved
        problems += _symbol_problems(interface, image)
        symbol = image.exported.get(_SYMBOLS[interface].process_wide)
        process_wide = None if symbol is None else bias + symbol.value
        if interface is Interface.LABELS and process_wide is not None:
            version = self._read_abi_version(process_wide)
            if version != _ABI_VERSION:
                problems.append(Problem(interface, "abi-version", f"it is {version}"))
                return unresolved
        kind, variable = self._find_variable(interface, image, bias, is_program, problems)
        library = Library(interface, mapping.path, kind, variable.offset if variable else None)
        return Publisher(library, variable, process_wide)

    def _find_variable(
        self, interface: Interface, image: elf.Image, bias: int, is_program: bool, problems: list[Problem]
    ) -> tuple[TlsKind, ThreadLocalVariable | None]:
        name = _SYMBOLS[interface].thread_local
        symbol = image.exported.get(name)
        if symbol is None:
            return TlsKind.UNKNOWN, None
        if is_program:
            offset = self._architecture.executable_offset(symbol.value, image.tls_size, image.tls_alignment)
            return TlsKind.STATIC, ThreadLocalVariable(offset)
        relocations = {relocation.kind: relocation for relocation in image.relocations if relocation.symbol == name}
        relocation = relocations.get(self._architecture.tlsdesc_relocation)
        if relocation is None:
            others = [text for kind, text in self._architecture.other_dialects.items() if kind in relocations]
            problems.append(Problem(interface, "tls-dialect", others[0] if others else "no relocation names it"))
            return TlsKind.UNKNOWN, None
        try:
            _entry, argument = self._read_descriptor(bias + relocation.address)
            static_offset = self._architecture.static_offset(argument)
            if static_offset is not None:
                return TlsKind.STATIC, ThreadLocalVariable(static_offset)
            module, module_offset = self._read_descriptor(argument)
        except UnreadableError as error:
            problems.append(Problem(interface, "tls-unresolved", str(error)))
            return TlsKind.UNKNOWN, None
        problems.append(Problem(interface, "tls-dynamic"))
        variable = ThreadLocalVariable(None, module, module_offset) if self._is_dtv_layout_known else None
        return TlsKind.DYNAMIC, variable

    def _read_descriptor(self, address: int) -> tuple[int, int]:
        return decode_descriptor(self._memory.read_bytes(address, DESCRIPTOR_BYTES))

    def _read_abi_version(self, address: int) -> int | None:
        try:
            return int.from_bytes(self._memory.read_bytes(address, 4), "little")
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
        return image is not None and _SYMBOLS[interface].thread_local in image.exported

    def _load_image(self, mapping: Mapping) -> elf.Image | None:
        """Return the parsed file; None if it is unreadable, or lacks both name and symbols."""
        try:
            file = self._open_file(mapping)
        except OSError:
            return None
        with file:
            file_stat = os.fstat(file.fileno())
            key = (file_stat.st_dev, file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)
            if key not in self._images:
                named = any(pattern.search(mapping.path) for pattern in LIBRARY_PATTERNS.values())
                # Most files lack the names, and searching for them is much quicker than parsing.
                read = named or elf.contains_any(file, [name.encode() for name in _ALL_SYMBOLS])
                self._images[key] = elf.read_image(file, _ALL_SYMBOLS) if read else None
            return self._images[key]

    def _open_file(self, mapping: Mapping) -> BinaryIO:
        if mapping.deleted:
            # CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE is required here; host profilers have them.
            return (self._proc_path / "map_files" / f"{mapping.start:x}-{mapping.end:x}").open("rb")
        return Path(f"{self._proc_path}/root{mapping.path}").open("rb")


def _symbol_problems(interface: Interface, image: elf.Image) -> list[Problem]:
    if not image.has_sections:
        return [Problem(interface, "no-section-headers")]
    names = _SYMBOLS[interface]
    found = []
    for name, size in ((names.thread_local, names.thread_local_bytes), (names.process_wide, names.process_wide_bytes)):
        symbol = image.exported.get(name)
        if symbol is None:
            found.append(Problem(interface, "symbol-hidden" if name in image.internal else "symbol-missing", name))
        elif size is not None and symbol.size != size:
            found.append(Problem(interface, "symbol-size", f"{name} has {symbol.size} bytes instead of {size}"))
    if any(other.thread_local in image.exported for other in _SYMBOLS.values() if other is not names):
        found.append(Problem(interface, "both-interfaces"))
    return found
