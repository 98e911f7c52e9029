"""The origin of a source file: the application, a library with its version, or the standard library.

The exporting thread runs all of it. It reads each entry of ``sys.path`` once, for a bounded time before
each profile, and offers the GIL in between. Files under an unread entry are classified by path alone.
Runs no code of the application, imports nothing at run time. Must not import settings, formats or OpenTelemetry.
"""

from __future__ import annotations

import os
import platform
import posixpath
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from splunk_profiler.code_origin.distributions import (
    OWN_NAME,
    OWN_PACKAGE,
    SITE_DIRECTORIES,
    Steps,
    module_globals,
    read_entry,
)
from splunk_profiler.code_origin.paths import is_library
from splunk_profiler.samples import CodeOrigin, OriginKind
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import logger

UNKNOWN = CodeOrigin(OriginKind.UNKNOWN)
APPLICATION = CodeOrigin(OriginKind.APPLICATION)
LIBRARY = CodeOrigin(OriginKind.LIBRARY)
STANDARD_LIBRARY = CodeOrigin(OriginKind.STANDARD_LIBRARY, "python", platform.python_version())

_OTHER_STANDARD_LIBRARY = CodeOrigin(OriginKind.STANDARD_LIBRARY, "python")  # of a Python whose version is not known
_PROFILER = CodeOrigin(OriginKind.LIBRARY, OWN_NAME)  # an installed distribution adds the version
_MAX_READ_S = 0.3  # of one call; forks and the end of the process wait for it
_PAUSE_INTERVAL_NS = 1_000_000
_MAX_ENTRIES = 512
_MAX_TRIES = 3  # to read an entry, with a profile between two: descriptors may be used up for a moment
_MAX_CACHED = 16_384
_FROZEN = "<frozen "


class CodeClassifier:
    """Finds the origin of code.

    Args:
        entries: returns the directories and archives to read; None: those of ``sys.path``.
        parent: in a forked child, the classifier of the parent; entries that it has read are not read again.
    """

    def __init__(
        self,
        entries: Callable[[], Iterable[object]] | None = None,
        *,
        parent: CodeClassifier | None = None,
        monotonic: Callable[[], float] = clocks.monotonic,
    ) -> None:
        self._entries = entries
        self._now = monotonic
        self._entries_read: set[str] = set() if parent is None else parent._entries_read.copy()
        self._origins_by_path: dict[str, CodeOrigin] = (
            _builtin_origins() if parent is None else parent._origins_by_path.copy()
        )
        self._origin_cache: dict[str | tuple[str, str], CodeOrigin] = {}
        self._entries_by_top: dict[str, list[str]] = {}  # by name of a module or package; cleared with the origins
        self._application_tops: set[str] = set()  # such names, as files of the application have them
        self._real_directories: dict[str, str] = {}
        self._reading: tuple[str, Steps] | None = None
        self._failures: Counter[str] = Counter()  # of reads of entries

    def read(self, pause: Callable[[], None] | None = None) -> bool:
        """Read installed distributions for 0.3 s at most; return True if all are read."""
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
            except Exception as error:
                logger.debug("cannot read the distributions in %s", entry, exc_info=True)
                self._failures[entry] += 1
                if isinstance(error, OSError) and self._failures[entry] < _MAX_TRIES:
                    self._reading = None
                    return False
                self._finish_entry(entry, {})
            # Each read releases the GIL already. Beside busy threads, getting it back takes tens of milliseconds.
            if pause is not None and time.thread_time_ns() - paused_ns >= _PAUSE_INTERVAL_NS:
                pause()
                paused_ns = time.thread_time_ns()
        return True

    def refresh(self, pause: Callable[[], None]) -> Callable[[str, str], CodeOrigin]:
        """Call `read` and return `classify`, for the encoder of a profile."""
        self.read(pause)
        return self.classify

    def classify(self, file: str, namespace: str) -> CodeOrigin:
        """Return the origin of the code object's `file`, in the module or class `namespace`."""
        key = file if file.startswith("/") else (file, namespace)
        found = self._origin_cache.get(key)
        if found is None:
            if len(self._origin_cache) >= _MAX_CACHED:
                self._clear_cache()
            found = self._origin_cache[key] = self._find(file, namespace)
        return found

    def _list_entries(self) -> list[str]:
        entries = list(sys.path if self._entries is None else self._entries())
        # '' is the current directory, where nothing is installed.
        return [entry for entry in entries if type(entry) is str and entry]

    def _next_entry(self) -> tuple[str, Steps] | None:
        for entry in self._list_entries():
            if entry not in self._entries_read:
                return (entry, read_entry(entry)) if len(self._entries_read) < _MAX_ENTRIES else None
        return None

    def _finish_entry(self, entry: str, found: dict[str, CodeOrigin]) -> None:
        # The order matters: a child that is forked in between reads the entry again.
        for place, origin in found.items():
            if self._origins_by_path.get(place, _PROFILER) is _PROFILER:
                self._origins_by_path[place] = origin
        self._entries_read.add(entry)
        self._reading = None
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._origin_cache.clear()
        self._entries_by_top.clear()

    def _find(self, file: str, namespace: str) -> CodeOrigin:
        if file.startswith("/"):
            found = self._origin_of_path(file) or self._origin_of_path(self._real_path(file))
            if found is None and is_library(file) and namespace.partition(".")[0] in sys.stdlib_module_names:
                return _OTHER_STANDARD_LIBRARY  # a stream is replayed
            if found is not None or os.path.exists(file):  # noqa: PTH110  # never raises
                return found or self._application_origin(namespace)
            return self._origin_of_module(file, namespace)  # it was delivered as bytecode that was compiled elsewhere
        frozen = file.removeprefix(_FROZEN).partition(".")[0].rstrip(">") if file.startswith(_FROZEN) else ""
        if frozen in sys.stdlib_module_names:
            return STANDARD_LIBRARY
        if not frozen and not file.startswith("<") and (found := self._origin_of_path(file)) is not None:
            return found  # under a relative entry of sys.path, such as a zip file that is run
        return self._origin_of_module(file, namespace)

    def _application_origin(self, namespace: str) -> CodeOrigin:
        """Note a module of the application: the path with which the exporter process was started may lack it."""
        top = namespace.partition(".")[0]
        if top not in self._application_tops and len(self._application_tops) < _MAX_CACHED:
            self._application_tops.add(top)
            self._clear_cache()  # it may have generated code that is unknown so far
        return APPLICATION

    def _origin_of_module(self, file: str, namespace: str) -> CodeOrigin:
        """Return the origin of code without a file, such as generated code: that of the module whose globals it has.

        `sys.modules` does not say: the exporter process has other modules than the application.
        """
        if (found := self._installed_origin(namespace)) is not None:
            return found
        top = namespace.partition(".")[0]
        if namespace != top:
            return self.classify(file, top)  # which asks the file system once for all modules of a package
        if top in sys.stdlib_module_names:
            return STANDARD_LIBRARY
        for place in (f"{entry}/{top}{suffix}" for entry in self._list_entries() for suffix in ("", ".py")):
            if top and os.path.exists(place):  # noqa: PTH110
                return self._origin_of_path(place) or APPLICATION
        is_known = top == "__main__" or top in self._application_tops
        return APPLICATION if is_known or file.startswith(_FROZEN) or "/" in file else UNKNOWN

    def _installed_origin(self, namespace: str) -> CodeOrigin | None:
        """Return the origin of what is installed as the module that is, or has the class, `namespace`."""
        entries = self._entries_with(namespace.partition(".")[0])
        while namespace:
            place = namespace.replace(".", "/")
            for entry in entries:
                path = f"{entry.rstrip('/')}/{place}"
                if found := self._origins_by_path.get(path) or self._origins_by_path.get(f"{path}.py"):
                    return found
            namespace = namespace.rpartition(".")[0]
        return None

    def _entries_with(self, top: str) -> list[str]:
        """Return the entries in which Python finds `top`, up to the application's module or regular package, if any.

        Behind that, `top` is another one: a stray `utils` or `tests` of a distribution.
        """
        if top not in self._entries_by_top:
            entries = self._list_entries()
            for number, entry in enumerate(entries, 1):
                is_of_application = (self._origin_of_path(entry) or APPLICATION).kind is OriginKind.APPLICATION
                places = (f"{entry}/{top}.py", f"{entry}/{top}/__init__.py")
                if is_of_application and any(map(os.path.exists, places)):
                    entries = entries[:number]
                    break
            self._entries_by_top[top] = entries
        return self._entries_by_top[top]

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
            with suppress(OSError, ValueError):  # the name is invalid
                real = os.path.realpath(directory)
            self._real_directories[directory] = real
        return f"{real}/{name}"


def _builtin_origins() -> dict[str, CodeOrigin]:
    """Return the paths of the standard library and of the profiler."""
    # Avoids `sysconfig`, which imports the build's data.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    paths = {f"{sys.base_exec_prefix}/{sys.platlibdir}/python{version}"}
    file = module_globals(os).get("__file__")  # none if modules are built into the program
    if type(file) is str and file.startswith("/"):
        paths.add(posixpath.dirname(file))
    name = f"/python{version.replace('.', '')}.zip"
    paths |= {entry for entry in sys.path if type(entry) is str and entry.endswith(name)}
    paths |= {os.path.realpath(path) for path in paths}
    return {**dict.fromkeys(paths, STANDARD_LIBRARY), OWN_PACKAGE: _PROFILER}
