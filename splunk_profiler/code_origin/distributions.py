"""What is installed: the directories and files of an entry of ``sys.path`` → the distribution that they belong to.

Reads what installers leave behind (``RECORD``, ``direct_url.json``, ``top_level.txt``, paths in ``.pth`` files), in
directories and in zip files, and of editable installs what their finders in this process know. Runs on the exporting
thread, in steps of about a millisecond. Runs no code of the application and imports nothing: not `importlib.metadata`
either, which asks the application's own finders and loads modules as it goes.

Specifications: "Recording installed projects", "Recording the Direct URL Origin" of the packaging guide.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401  # zipfile loads it when it meets a name
import json
import os
import posixpath
import re
import sys
import zipfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from splunk_profiler.model import CodeOrigin, OriginKind

SITE_DIRECTORIES = ("site-packages", "dist-packages")

OWN_NAME = "splunk-profiler"  # however it is installed, it is nobody's application
OWN_PACKAGE = posixpath.dirname(posixpath.dirname(__file__))
_MAX_FILE_BYTES = 8 << 20
_READ_SIZE = 1 << 20
_MAX_DIRECTORIES = 50_000
_MAX_REDIRECTIONS = 5_000
_LINES_PER_STEP = 1000  # lines between two steps
_NAMES_PER_STEP = 64  # of a directory, between two steps
_SEPARATORS = re.compile(r"[-_.]+")
_DEVELOPER_INSTALLERS = ("pip", "uv", "poetry", "pdm")
_METADATA_SUFFIXES = (".dist-info", ".egg-info")
_EGG_METADATA = "EGG-INFO"

Steps: TypeAlias = Generator[None, None, dict[str, CodeOrigin]]


class _Folder(Protocol):
    """A directory, or a zip file that stands for one."""

    def names(self) -> Iterable[str]:
        """What it holds, without what is below that."""

    def read(self, name: str) -> str:
        """The text of a file in it; empty if there is none that can be read."""


class _Directory:
    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> Iterator[str]:
        with suppress(OSError), os.scandir(self._path) as entries:
            for entry in entries:  # each lets go of the GIL
                yield entry.name

    def read(self, name: str) -> str:
        # Few system calls, since each lets go of the GIL; none that waits, whatever kind of file this is.
        try:
            file = os.open(f"{self._path}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return ""
        content = b""
        try:
            while len(content) < _MAX_FILE_BYTES:
                content += (more := os.read(file, _READ_SIZE))
                if len(more) < _READ_SIZE:  # the end of a file; of anything else as much as there is
                    break
        except OSError:
            return ""
        finally:
            os.close(file)
        return content.decode("utf-8", "replace")


class _Archive:
    """A zip file, or what begins with `prefix` in one. Raises `OSError` or `zipfile.BadZipFile` if it is none."""

    def __init__(self, path: str, prefix: str) -> None:
        self._zip = zipfile.ZipFile(path)
        self._prefix = prefix

    def names(self) -> list[str]:
        found = (name for name in self._zip.namelist() if name.startswith(self._prefix))
        return list({name[len(self._prefix) :].partition("/")[0] for name in found})

    def read(self, name: str) -> str:
        path = self._prefix + name
        try:
            if self._zip.getinfo(path).file_size > _MAX_FILE_BYTES:
                return ""
            return self._zip.read(path).decode("utf-8", "replace")
        except Exception:  # what is not there, broken, encrypted or compressed in an unknown way
            return ""


def read_entry(entry: str) -> Steps:
    """Absolute directories and files under `entry`, and those that editable installs in it point to.

    A file belongs to what is said of itself, else of the nearest directory around it. Yields after each step.
    """
    folder = _folder(entry)
    if folder is None:
        return {}
    found = _EntryIndex()
    kinds = (*_METADATA_SUFFIXES, _EGG_METADATA) if entry.rstrip("/").endswith(".egg") else _METADATA_SUFFIXES
    names = []
    for number, name in enumerate(folder.names(), 1):
        if number % _NAMES_PER_STEP == 0:
            yield
        if name.endswith(kinds) and not name.startswith(("~", ".", "-")):
            names.append(name)
    installed = [_Distribution(folder, name, entry) for name in sorted(names)]
    yield
    for each in installed:
        yield from each.claim(found)
        yield
    shared = set().union(*found.shared.values()) if found.shared else set()
    for each in installed:
        if each.origin in shared:
            yield from each.claim_files(found)
    yield
    kept = found.compact()
    base = entry.rstrip("/")
    return {**{f"{base}/{path}": origin for path, origin in kept.items()}, **found.absolute_paths}


def _folder(entry: str) -> _Folder | None:
    try:
        if Path(entry).is_dir():
            return _Directory(entry)
        archive, prefix = entry.rstrip("/"), ""
        while archive and not os.path.lexists(archive):  # a directory in a zip file may be an entry too
            archive, _, name = archive.rpartition("/")
            prefix = f"{name}/{prefix}"
        return _Archive(archive, prefix) if Path(archive).is_file() else None
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return None


@dataclass(slots=True)
class _EntryIndex:
    """What was found under an entry, relative to it.

    Attributes:
        directories: those with modules of one distribution.
        shared: those with modules of several, and which these are.
        files: single modules, where the directory does not tell.
        absolute_paths: absolute places of editable installs.
    """

    directories: dict[str, CodeOrigin] = field(default_factory=dict)
    shared: dict[str, set[CodeOrigin]] = field(default_factory=dict)
    files: dict[str, CodeOrigin] = field(default_factory=dict)
    absolute_paths: dict[str, CodeOrigin] = field(default_factory=dict)

    def claim(self, path: str, origin: CodeOrigin) -> None:
        """A module of that distribution."""
        directory = path.rpartition("/")[0]
        if not directory:
            self.files[path] = origin
        elif (known := self.directories.get(directory)) is None:
            if len(self.directories) < _MAX_DIRECTORIES:
                self.directories[directory] = origin
        elif known != origin:
            self.shared.setdefault(directory, {known}).add(origin)

    def compact(self) -> dict[str, CodeOrigin]:
        """All places, without the directories that say what the next known one around them says too."""
        for directory in self.shared:
            del self.directories[directory]
        kept = dict(self.files)
        for directory, origin in self.directories.items():
            enclosing = directory.rpartition("/")[0]
            while enclosing and enclosing not in self.directories and enclosing not in self.shared:
                enclosing = enclosing.rpartition("/")[0]
            if self.directories.get(enclosing) != origin:
                kept[directory] = origin
        return kept


class _Distribution:
    """One ``.dist-info`` or ``.egg-info`` of a folder, or the egg that the folder is."""

    def __init__(self, folder: _Folder, metadata: str, entry: str) -> None:
        self._folder, self._metadata, self._entry = folder, metadata, entry.rstrip("/")
        named = metadata if metadata != _EGG_METADATA else posixpath.basename(self._entry)
        stem, _, self._kind = named.rpartition(".")
        name, _, version = stem.partition("-")
        if self._kind != "dist-info":
            version = version.partition("-py")[0]
        self._module = name
        in_site = self._entry.endswith(SITE_DIRECTORIES)
        is_editable = self._kind == "egg-info" and not in_site  # beside its source: made by `setup.py develop`
        self.origin = CodeOrigin(
            OriginKind.APPLICATION if is_editable else OriginKind.LIBRARY, normalize_name(name), version
        )

    def claim(self, found: _EntryIndex) -> Iterator[None]:
        """Say which modules this is."""
        if self._kind == "egg":
            found.absolute_paths[self._entry] = self.origin
            return
        if self._kind == "egg-info" and not self.origin.version:
            self._read_version()
        text = self._text("RECORD") or self._text("installed-files.txt")
        project = self._read_editable_directory() if f"{self._metadata}/direct_url.json" in text else None
        recorded = text.splitlines()
        editable_files: list[str] = []
        scripts: list[str] = []
        for number, line in enumerate(recorded, 1):
            if number % _LINES_PER_STEP == 0:
                yield
            if (path := self._path(line)) is None:
                if "/bin/" in line:  # what a service is started by: `gunicorn`
                    scripts.append(posixpath.join(self._entry, line.partition(",")[0]))
                continue
            if "/" not in path and (path.endswith(".pth") or "editable" in path):
                editable_files.append(path)
            elif module := _module(path):
                found.claim(module, self.origin)
        if not recorded:
            self._claim_top_level(found)
        yield
        absolute_paths = [place for name in editable_files for place in self._iter_targets(name)]
        if self.origin.name == OWN_NAME:
            absolute_paths = [OWN_PACKAGE]  # not the project: its examples are not the profiler
        elif project is not None and not absolute_paths:
            absolute_paths = [project]
        prefix = f"{self._entry}/"  # a library's further entry of sys.path
        outside = [place for place in absolute_paths if not place.startswith(prefix)]
        found.absolute_paths.update((place, self.origin) for place in absolute_paths)
        found.absolute_paths.update((place, self._editable_origin()) for place in outside)
        script_origin = self._editable_origin() if outside else self.origin
        found.absolute_paths.update((posixpath.normpath(script), script_origin) for script in scripts)

    def claim_files(self, found: _EntryIndex) -> Iterator[None]:
        """Say of each module in a directory that several have which one it is."""
        for number, line in enumerate(self._text("RECORD").splitlines(), 1):
            if number % _LINES_PER_STEP == 0:
                yield
            path = self._path(line)
            if path is not None and (module := _module(path)) and module.rpartition("/")[0] in found.shared:
                found.files[module] = self.origin

    def _text(self, name: str) -> str:
        return self._folder.read(f"{self._metadata}/{name}")

    def _path(self, line: str) -> str | None:
        """The path in a line of a RECORD, or of ``installed-files.txt``; None for what is not under the entry."""
        path = line[1:].partition('"')[0] if line.startswith('"') else line.partition(",")[0]
        if self._kind == "egg-info":
            path = posixpath.normpath(f"{self._metadata}/{path}")
        return None if not path or path.startswith(("../", "/")) else path

    def _read_version(self) -> None:
        info = self._text("PKG-INFO").splitlines()
        versions = [line.partition(":")[2].strip() for line in info if line.startswith("Version:")]
        self.origin = CodeOrigin(self.origin.kind, self.origin.name, versions[0] if versions else "")

    def _claim_top_level(self, found: _EntryIndex) -> None:
        """Without a list of files: what it says are its packages, else the one of its name."""
        for name in self._text("top_level.txt").splitlines() or [self._module]:
            if name and "/" not in name:
                found.claim(f"{name}/__init__.py", self.origin)
                found.claim(f"{name}.py", self.origin)

    def _editable_origin(self) -> CodeOrigin:
        kind = OriginKind.LIBRARY if self.origin.name == OWN_NAME else OriginKind.APPLICATION
        return CodeOrigin(kind, self.origin.name, self.origin.version)

    def _read_editable_directory(self) -> str | None:
        """The directory that an editable install is of. What was installed from a directory is the application's.

        Unless a packager has done that: what conda has built says so too, all of it.
        """
        try:
            content = json.loads(self._text("direct_url.json"))
            directory = content.get("dir_info")
            url = urlsplit(content["url"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(directory, dict) or not self._text("INSTALLER").startswith(_DEVELOPER_INSTALLERS):
            return None
        self.origin = self._editable_origin()
        return unquote(url.path).rstrip("/") or None if directory.get("editable") and url.scheme == "file" else None

    def _iter_targets(self, name: str) -> Iterator[str]:
        """The places that a ``.pth`` file or the module of an editable install leads to."""
        if name.endswith(".pth"):
            for line in self._folder.read(name).splitlines():
                if line.strip() and not line.startswith(("import ", "import\t", "#")):
                    yield posixpath.normpath(posixpath.join(self._entry, line.strip()))
        elif name.endswith(".py"):
            yield from _iter_finder_targets(name.removesuffix(".py"))


def _module(path: str) -> str:
    """The source file of a module that is delivered as this, perhaps without it; empty if it is no module."""
    if path.endswith(".py") or (path.endswith(".pyc") and "__pycache__/" not in path):
        return path.removesuffix("c")
    return ""


def normalize_name(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return _SEPARATORS.sub("-", name).lower()


def _iter_finder_targets(module: str) -> Iterator[str]:
    """Where the finder that `module` has installed looks: setuptools keeps that in the module, others in the finder."""
    namespaces = [module_globals(sys.modules.get(module))]
    for finder in list(sys.meta_path):
        if type(finder).__module__ == module:
            with suppress(Exception):  # an instance without a dictionary
                namespaces.append(object.__getattribute__(finder, "__dict__"))
    paths = {
        target
        for namespace in namespaces
        for value in list(namespace.values())
        if type(value) is dict
        for target in list(value.values())[:_MAX_REDIRECTIONS]
        if type(target) is str and target.startswith("/")
    }
    packages = {path.removesuffix("/__init__.py") for path in paths if not path.endswith(".py")}
    packages |= {path.rpartition("/")[0] for path in paths if path.endswith("/__init__.py")}
    for path in packages:
        is_directory = os.path.isdir(path)  # noqa: PTH112  # raises for no path
        yield path if is_directory else f"{path}.py"  # of a module setuptools knows all but that
    yield from (path for path in paths if path.endswith(".py") and path.rpartition("/")[0] not in packages)


def module_globals(module: Any) -> dict[str, Any]:
    """The globals of a module, without an access that could run code; empty if it is none."""
    if not issubclass(type(module), ModuleType):
        return {}
    found = vars(ModuleType)["__dict__"].__get__(module)
    return found if isinstance(found, dict) else {}
