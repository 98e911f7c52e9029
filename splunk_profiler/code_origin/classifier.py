"""Whose code a source file is: the application's, a library's (and of which version), or the standard library's.

Belongs to the exporting thread, which reads on before it encodes a profile: each entry of ``sys.path`` once, a bounded
time at a stretch, letting others run in between. Until an entry has been read, what is under it counts as what its
path looks like. Answers are kept for each file. Runs no code of the application and imports nothing as it works; must
not import settings, formats or OpenTelemetry.
"""

from __future__ import annotations

import os
import platform
import posixpath
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from splunk_profiler.code_origin.distributions import (
    OWN_NAME,
    OWN_PACKAGE,
    SITE_DIRECTORIES,
    Steps,
    module_globals,
    read_entry,
)
from splunk_profiler.model import CodeOrigin, OriginKind
from splunk_profiler.system.guard import logger

UNKNOWN = CodeOrigin(OriginKind.UNKNOWN)
APPLICATION = CodeOrigin(OriginKind.APPLICATION)
LIBRARY = CodeOrigin(OriginKind.LIBRARY)
STANDARD_LIBRARY = CodeOrigin(OriginKind.STANDARD_LIBRARY, "python", platform.python_version())

_PROFILER = CodeOrigin(OriginKind.LIBRARY, OWN_NAME)  # of which version, its distribution says, where it is installed
_MAX_READ_S = 0.3  # at a stretch: a fork waits for it, and so does the end of the process
_PAUSE_INTERVAL_NS = 1_000_000
_MAX_ENTRIES = 512
_MAX_CACHED = 16_384
_FROZEN = "<frozen "


class CodeClassifier:
    """Says where code comes from.

    Args:
        entries: where modules are found, as of now.
        parent: in a forked child, what its parent had; what that has read is not read again.
        monotonic: the clock, in seconds.
    """

    def __init__(
        self,
        entries: Callable[[], Iterable[object]] = lambda: sys.path,
        *,
        parent: CodeClassifier | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = entries
        self._now = monotonic
        self._entries_read: set[str] = set() if parent is None else parent._entries_read.copy()
        self._origins_by_path: dict[str, CodeOrigin] = (
            _builtin_origins() if parent is None else parent._origins_by_path.copy()
        )
        self._origin_cache: dict[str | tuple[str, str], CodeOrigin] = {}
        self._real_directories: dict[str, str] = {}
        self._reading: tuple[str, Steps] | None = None

    def read(self, pause: Callable[[], None] = lambda: None) -> bool:
        """Read on about what is installed, for a third of a second at most. True if everything has been read.

        Args:
            pause: called again and again in between, so that other threads may run.
        """
        until = self._now() + _MAX_READ_S
        paused_ns = time.thread_time_ns()
        while (reading := self._reading or self._next_entry()) is not None:
            if self._now() >= until:
                return False
            entry, steps = self._reading = reading
            try:
                next(steps)
            except StopIteration as ended:
                self._finish_entry(entry, ended.value)
            except Exception:
                logger.debug("what is installed in %s cannot be read", entry, exc_info=True)
                self._finish_entry(entry, {})
            # Reading lets go of the GIL by itself, and to get it back beside busy threads takes tens of milliseconds.
            if time.thread_time_ns() - paused_ns >= _PAUSE_INTERVAL_NS:
                pause()
                paused_ns = time.thread_time_ns()
        return True

    def refresh(self, pause: Callable[[], None]) -> Callable[[str, str], CodeOrigin]:
        """`classify`, after some reading (`read`): what those who encode a profile ask."""
        self.read(pause)
        return self.classify

    def classify(self, file: str, namespace: str) -> CodeOrigin:
        """Whose code is in `file`, which a code object names, of a module or class `namespace`."""
        key = file if file.startswith("/") else (file, namespace)
        found = self._origin_cache.get(key)
        if found is None:
            if len(self._origin_cache) >= _MAX_CACHED:
                self._origin_cache.clear()
            found = self._origin_cache[key] = self._find(file, namespace)
        return found

    def _next_entry(self) -> tuple[str, Steps] | None:
        for entry in list(self._entries()):
            # Nothing is installed in '', the current directory.
            if (
                type(entry) is str
                and entry
                and entry not in self._entries_read
                and len(self._entries_read) < _MAX_ENTRIES
            ):
                return entry, read_entry(entry)
        return None

    def _finish_entry(self, entry: str, found: dict[str, CodeOrigin]) -> None:
        # In this order: a child that is forked in between reads the entry again.
        for place, origin in found.items():
            if self._origins_by_path.get(place, _PROFILER) is _PROFILER:
                self._origins_by_path[place] = origin
        self._entries_read.add(entry)
        self._reading = None
        self._origin_cache.clear()

    def _find(self, file: str, namespace: str) -> CodeOrigin:
        if file.startswith("/"):
            found = self._origin_of_path(file) or self._origin_of_path(self._real_path(file))
            if found is None and (module_file := _module_file_of(namespace)) != file and not _exists(file):
                found = self._origin_of_path(
                    module_file.removesuffix("c")
                )  # delivered as it was compiled somewhere else
            return found or APPLICATION
        frozen = file.removeprefix(_FROZEN).partition(".")[0].rstrip(">") if file.startswith(_FROZEN) else ""
        if frozen in sys.stdlib_module_names:
            return STANDARD_LIBRARY
        if not frozen and not file.startswith("<") and (found := self._origin_of_path(file)) is not None:
            return found  # a relative entry of sys.path, for instance a zip file that is run
        # Code that was generated belongs to the module in whose name it runs.
        if (module_file := _module_file_of(namespace)).startswith("/"):
            return self.classify(module_file, namespace)
        top = namespace.partition(".")[0]
        if top in sys.stdlib_module_names:
            return STANDARD_LIBRARY
        return APPLICATION if top == "__main__" or frozen or "/" in file else UNKNOWN

    def _origin_of_path(self, file: str) -> CodeOrigin | None:
        place = file
        while place:
            if (found := self._origins_by_path.get(place)) is not None:
                return found
            place, _, name = place.rpartition("/")
            if name in SITE_DIRECTORIES:
                return LIBRARY
        return None

    def _real_path(self, file: str) -> str:
        directory, _, name = file.rpartition("/")
        real = self._real_directories.get(directory)
        if real is None:
            if len(self._real_directories) >= _MAX_CACHED:
                self._real_directories.clear()
            real = directory
            with suppress(OSError, ValueError):  # a name that no file can have
                real = os.path.realpath(directory)
            self._real_directories[directory] = real
        return f"{real}/{name}"


def _builtin_origins() -> dict[str, CodeOrigin]:
    """The standard library and the profiler itself."""
    # Not by `sysconfig`, which loads what it knows of the build.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    paths = {f"{sys.base_exec_prefix}/{sys.platlibdir}/python{version}"}
    file = module_globals(os).get("__file__")  # there is none where modules are built into the program
    if type(file) is str and file.startswith("/"):
        paths.add(posixpath.dirname(file))
    name = f"/python{version.replace('.', '')}.zip"
    paths |= {entry for entry in sys.path if type(entry) is str and entry.endswith(name)}
    paths |= {os.path.realpath(path) for path in paths}
    return {**dict.fromkeys(paths, STANDARD_LIBRARY), OWN_PACKAGE: _PROFILER}


def _exists(file: str) -> bool:
    try:
        return Path(file).exists()
    except (OSError, ValueError):
        return False


def _module_file_of(namespace: str) -> str:
    """The file of the module that `namespace`, a module or a class in one, is in; empty if it is not known."""
    while namespace:
        module = sys.modules.get(namespace)
        if module is not None:
            file = module_globals(module).get("__file__")
            return file if type(file) is str else ""
        namespace = namespace.rpartition(".")[0]
    return ""
