"""Search for the libraries that a host profiler would recognise, and for their variables.

The steps are those of host profilers: mapped path, file, symbols and relocations, load bias, TLS
descriptor in memory. Runs on the caller's thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from splunk_profiler.inspector import elf
from splunk_profiler.inspector.architecture import Architecture
from splunk_profiler.inspector.errors import MalformedError, UnreadableError
from splunk_profiler.inspector.maps import LIBRARY_PATTERNS, Mapping, code_mapping_by_path, runs_musl
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import Interface, Problem, PublishingLibrary, ThreadLocalVariable, TlsKind


class _Symbols(NamedTuple):
    """The names of the two symbols of an interface."""

    thread_local: str
    process_wide: str


_SYMBOLS = {
    Interface.ELASTIC: _Symbols(
        "elastic_apm_profiling_correlation_tls_v1", "elastic_apm_profiling_correlation_process_storage_v1"
    ),
    Interface.LABELS: _Symbols("custom_labels_current_set", "custom_labels_abi_version"),
}
_ALL_SYMBOLS = frozenset(name for symbols in _SYMBOLS.values() for name in symbols)
_SIZES = {**dict.fromkeys(_SYMBOLS[Interface.ELASTIC], 8), "custom_labels_abi_version": 4}  # in bytes, where specified
_ABI_VERSION = 1
_MAX_READ_BYTES = 1 << 27  # of the files of a process, in one search; the largest libraries have 30 MB of tables


class LibrarySearch:
    """A search for libraries that publish `interfaces` below ``/proc/TID``, with a cache of parsed and malformed files.

    Attributes:
        libraries: what the last `run` found, at most one for each interface.
        problems: what is wrong with these libraries, or why there is none.
    """

    def __init__(
        self, proc_path: Path, memory: Memory, architecture: Architecture, interfaces: Collection[Interface]
    ) -> None:
        self._proc_path = proc_path
        self._interfaces = interfaces
        self._memory = memory
        self._architecture = architecture
        self.libraries: dict[Interface, PublishingLibrary] = {}
        self.problems: list[Problem] = []
        self._is_dtv_layout_known = True
        self._images: dict[tuple[int, int, int, int], elf.Image | str] = {}  # or why it is malformed
        self._last_images = self._images
        self._budget = elf.ReadBudget(_MAX_READ_BYTES)

    def run(self, mappings: Sequence[Mapping], program: str) -> None:
        """Search the mapped files; `program` is the path of the main executable."""
        self._last_images, self._images = self._images, {}
        self._budget = elf.ReadBudget(_MAX_READ_BYTES)
        code = code_mapping_by_path(mappings)
        self._is_dtv_layout_known = not runs_musl(mappings)
        self.libraries, self.problems = {}, []
        named_mappings = {interface: self._named_mappings(interface, code, program) for interface in self._interfaces}
        # Named libraries first: for one that is missing, all files are searched, which may take all of the budget.
        for interface, named in sorted(named_mappings.items(), key=lambda item: not item[1]):
            if not named:
                self.problems.append(self._missing_library_problem(interface, code))
                continue
            if len(named) > 1:
                self.problems.append(Problem(interface, "several-libraries", ", ".join(one.path for one in named)))
            self.libraries[interface] = self._resolve(interface, named[0], is_program=named[0].path == program)

    def _named_mappings(self, interface: Interface, code: dict[str, Mapping], program: str) -> list[Mapping]:
        """Return the files named for the interface; for labels, else a program that exports them."""
        pattern = LIBRARY_PATTERNS[interface]
        named = [mapping for path, mapping in code.items() if pattern.search(path)]
        if named or interface is not Interface.LABELS or program not in code:
            return named
        return [code[program]] if self._exports_symbol(code[program], interface) else []

    def _resolve(self, interface: Interface, mapping: Mapping, *, is_program: bool) -> PublishingLibrary:
        """Return what is known of the library in `mapping`; add its problems."""
        unresolved = PublishingLibrary(interface, mapping.path)
        try:
            image = self._load_image(mapping)
            if image is None:
                code = "file-gone" if mapping.deleted else "file-unreadable"
                self.problems.append(Problem(interface, code, mapping.path))
                return unresolved
            bias = image.bias(mapping.start, mapping.offset)
        except MalformedError as error:
            self.problems.append(Problem(interface, "file-malformed", f"{mapping.path}: {error}"))
            return unresolved
        self.problems += _symbol_problems(interface, image)
        symbol = image.exported.get(_SYMBOLS[interface].process_wide)
        process_wide = None if symbol is None else bias + symbol.value
        if interface is Interface.LABELS and process_wide is not None:
            version = self._read_abi_version(process_wide)
            if version != _ABI_VERSION:
                self.problems.append(Problem(interface, "abi-version", f"it is {version}"))
                return unresolved
        variable = self._find_variable(interface, image, bias, is_program=is_program)
        return PublishingLibrary(interface, mapping.path, variable, process_wide)

    def _find_variable(
        self, interface: Interface, image: elf.Image, bias: int, *, is_program: bool
    ) -> ThreadLocalVariable:
        name = _SYMBOLS[interface].thread_local
        symbol = image.exported.get(name)
        if symbol is None:
            return ThreadLocalVariable()
        if is_program:
            offset = self._architecture.executable_offset(symbol.value, image.tls_size, image.tls_alignment)
            return ThreadLocalVariable(TlsKind.STATIC, offset)
        relocations = image.relocations[name]
        descriptor = relocations.get(self._architecture.tlsdesc_relocation)
        if descriptor is None:
            others = [text for kind, text in self._architecture.other_dialects.items() if kind in relocations]
            self.problems.append(Problem(interface, "tls-dialect", others[0] if others else "no relocation names it"))
            return ThreadLocalVariable()
        try:
            variable = self._follow_descriptor(bias + descriptor)
        except UnreadableError as error:
            self.problems.append(Problem(interface, "tls-unresolved", str(error)))
            return ThreadLocalVariable()
        if variable.tls is TlsKind.DYNAMIC:
            self.problems.append(Problem(interface, "tls-dynamic"))
        return variable

    def _follow_descriptor(self, address: int) -> ThreadLocalVariable:
        """Return the variable of a TLS descriptor: two words, a function and its argument."""
        read_word = self._memory.read_word
        argument = read_word(address + 8)
        static_offset = self._architecture.static_offset(argument)
        if static_offset is not None:
            return ThreadLocalVariable(TlsKind.STATIC, static_offset)
        module, module_offset = read_word(argument), read_word(argument + 8)
        if not self._is_dtv_layout_known:
            return ThreadLocalVariable(TlsKind.DYNAMIC)
        return ThreadLocalVariable(TlsKind.DYNAMIC, module=module, module_offset=module_offset)

    def _read_abi_version(self, address: int) -> int | None:
        try:
            return int.from_bytes(self._memory.read(address, 4), "little")
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
        """Return the parsed file; None if it is unreadable."""
        try:
            with self._open_file(mapping) as file:
                return self._read_image(file)
        except OSError:
            return None

    def _read_image(self, file: BinaryIO) -> elf.Image | None:
        file_stat = os.fstat(file.fileno())
        if not stat.S_ISREG(file_stat.st_mode):
            return None
        key = (file_stat.st_dev, file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)
        found = self._images.get(key) or self._last_images.get(key) or self._parse(file)
        self._images[key] = found
        if isinstance(found, str):
            raise MalformedError(found)
        return found

    def _parse(self, file: BinaryIO) -> elf.Image | str:
        try:
            return elf.read_image(file, _ALL_SYMBOLS, self._budget)
        except MalformedError as error:
            return str(error)

    def _open_file(self, mapping: Mapping) -> BinaryIO:
        path = Path(f"{self._proc_path}/root{mapping.path}")
        if mapping.deleted:
            # CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE is required here; host profilers have them.
            path = self._proc_path / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
        return open(path, "rb", opener=_open_without_waiting)  # a Path takes no opener


def _open_without_waiting(path: str, flags: int) -> int:
    """Open what may be another file than the mapped one by now, such as a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _symbol_problems(interface: Interface, image: elf.Image) -> list[Problem]:
    if not image.has_sections:
        return [Problem(interface, "no-section-headers")]
    found = []
    for name in _SYMBOLS[interface]:
        symbol = image.exported.get(name)
        if symbol is None:
            found.append(Problem(interface, "symbol-hidden" if name in image.internal else "symbol-missing", name))
        elif symbol.size != _SIZES.get(name, symbol.size):
            found.append(Problem(interface, "symbol-size", f"{name} has {symbol.size} bytes instead of {_SIZES[name]}"))
    if any(symbols.thread_local in image.exported for other, symbols in _SYMBOLS.items() if other is not interface):
        found.append(Problem(interface, "both-interfaces"))
    return found
