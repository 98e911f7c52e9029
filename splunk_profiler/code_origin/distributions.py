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

from splunk_profiler.model import CodeOrigin, Kind

SITE_DIRECTORIES = ("site-packages", "dist-packages")

OWN_NAME = "splunk-profiler"  # however it is installed, it is nobody's application
OWN_PACKAGE = posixpath.dirname(posixpath.dirname(__file__))
_LARGEST_FILE = 8 << 20
_READ_SIZE = 1 << 20
_MOST_DIRECTORIES = 50_000
_MOST_REDIRECTIONS = 5_000
_SLICE = 1000  # lines between two steps
_NAMES = 64  # of a directory, between two steps
_SEPARATORS = re.compile(r"[-_.]+")
_DEVELOPERS_INSTALLERS = ("pip", "uv", "poetry", "pdm")
_METADATA = (".dist-info", ".egg-info")
_OF_EGG = "EGG-INFO"

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
            while len(content) < _LARGEST_FILE:
                content += (more := os.read(file, _READ_SIZE))
                if len(more) < _READ_SIZE:  # the end of a file; of anything else as much as there is
                    break
        except OSError:
            return ""
        finally:
            os.close(file)
        return content.decode("utf-8", "replace")


class _Archive:
    """A zip file, or what begins with `inside` in one. Raises `OSError` or `zipfile.BadZipFile` if it is none."""

    def __init__(self, path: str, inside: str) -> None:
        self._zip = zipfile.ZipFile(path)
        self._inside = inside

    def names(self) -> list[str]:
        found = (name for name in self._zip.namelist() if name.startswith(self._inside))
        return list({name[len(self._inside) :].partition("/")[0] for name in found})

    def read(self, name: str) -> str:
        path = self._inside + name
        try:
            if self._zip.getinfo(path).file_size > _LARGEST_FILE:
                return ""
            return self._zip.read(path).decode("utf-8", "replace")
        except Exception:  # what is not there, broken, encrypted or compressed in an unknown way
            return ""


def places(entry: str) -> Steps:
    """Absolute directories and files under `entry`, and those that editable installs in it point to.

    A file belongs to what is said of itself, else of the nearest directory around it. Yields after each step.
    """
    folder = _folder(entry)
    if folder is None:
        return {}
    found = _Found()
    kinds = (*_METADATA, _OF_EGG) if entry.rstrip("/").endswith(".egg") else _METADATA
    names = []
    for number, name in enumerate(folder.names(), 1):
        if number % _NAMES == 0:
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
    kept = found.compressed()
    base = entry.rstrip("/")
    return {**{f"{base}/{path}": origin for path, origin in kept.items()}, **found.elsewhere}


def _folder(entry: str) -> _Folder | None:
    try:
        if Path(entry).is_dir():
            return _Directory(entry)
        archive, inside = entry.rstrip("/"), ""
        while archive and not os.path.lexists(archive):  # a directory in a zip file may be an entry too
            archive, _, name = archive.rpartition("/")
            inside = f"{name}/{inside}"
        return _Archive(archive, inside) if Path(archive).is_file() else None
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return None


@dataclass(slots=True)
class _Found:
    """What was found under an entry, relative to it.

    Attributes:
        directories: those with modules of one distribution.
        shared: those with modules of several, and which these are.
        files: single modules, where the directory does not tell.
        elsewhere: absolute places of editable installs.
    """

    directories: dict[str, CodeOrigin] = field(default_factory=dict)
    shared: dict[str, set[CodeOrigin]] = field(default_factory=dict)
    files: dict[str, CodeOrigin] = field(default_factory=dict)
    elsewhere: dict[str, CodeOrigin] = field(default_factory=dict)

    def claim(self, path: str, origin: CodeOrigin) -> None:
        """A module of that distribution."""
        directory = path.rpartition("/")[0]
        if not directory:
            self.files[path] = origin
        elif (known := self.directories.get(directory)) is None:
            if len(self.directories) < _MOST_DIRECTORIES:
                self.directories[directory] = origin
        elif known != origin:
            self.shared.setdefault(directory, {known}).add(origin)

    def compressed(self) -> dict[str, CodeOrigin]:
        """All places, without the directories that say what the next known one around them says too."""
        for directory in self.shared:
            del self.directories[directory]
        kept = dict(self.files)
        for directory, origin in self.directories.items():
            around = directory.rpartition("/")[0]
            while around and around not in self.directories and around not in self.shared:
                around = around.rpartition("/")[0]
            if self.directories.get(around) != origin:
                kept[directory] = origin
        return kept


class _Distribution:
    """One ``.dist-info`` or ``.egg-info`` of a folder, or the egg that the folder is."""

    def __init__(self, folder: _Folder, metadata: str, entry: str) -> None:
        self._folder, self._metadata, self._entry = folder, metadata, entry.rstrip("/")
        named = metadata if metadata != _OF_EGG else posixpath.basename(self._entry)
        stem, _, self._kind = named.rpartition(".")
        name, _, version = stem.partition("-")
        if self._kind != "dist-info":
            version = version.partition("-py")[0]
        self._module = name
        in_site = self._entry.endswith(SITE_DIRECTORIES)
        developed = self._kind == "egg-info" and not in_site  # beside its source: made by `setup.py develop`
        self.origin = CodeOrigin(Kind.APPLICATION if developed else Kind.LIBRARY, normalised(name), version)

    def claim(self, found: _Found) -> Iterator[None]:
        """Say which modules this is."""
        if self._kind == "egg":
            found.elsewhere[self._entry] = self.origin
            return
        if self._kind == "egg-info" and not self.origin.version:
            self._ask_package_info()
        text = self._text("RECORD") or self._text("installed-files.txt")
        project = self._project() if f"{self._metadata}/direct_url.json" in text else None
        recorded = text.splitlines()
        own: list[str] = []
        scripts: list[str] = []
        for number, line in enumerate(recorded, 1):
            if number % _SLICE == 0:
                yield
            if (path := self._path(line)) is None:
                if "/bin/" in line:  # what a service is started by: `gunicorn`
                    scripts.append(posixpath.join(self._entry, line.partition(",")[0]))
                continue
            if "/" not in path and (path.endswith(".pth") or "editable" in path):
                own.append(path)
            elif module := _module(path):
                found.claim(module, self.origin)
        if not recorded:
            self._claim_top_level(found)
        yield
        elsewhere = [place for name in own for place in self._pointed_to(name)]
        if self.origin.name == OWN_NAME:
            elsewhere = [OWN_PACKAGE]  # not the project: its examples are not the profiler
        elif project is not None and not elsewhere:
            elsewhere = [project]
        inside = f"{self._entry}/"  # a library's further entry of sys.path
        outside = [place for place in elsewhere if not place.startswith(inside)]
        found.elsewhere.update((place, self.origin) for place in elsewhere)
        found.elsewhere.update((place, self._developed()) for place in outside)
        starts = self._developed() if outside else self.origin
        found.elsewhere.update((posixpath.normpath(script), starts) for script in scripts)

    def claim_files(self, found: _Found) -> Iterator[None]:
        """Say of each module in a directory that several have which one it is."""
        for number, line in enumerate(self._text("RECORD").splitlines(), 1):
            if number % _SLICE == 0:
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

    def _ask_package_info(self) -> None:
        info = self._text("PKG-INFO").splitlines()
        versions = [line.partition(":")[2].strip() for line in info if line.startswith("Version:")]
        self.origin = CodeOrigin(self.origin.kind, self.origin.name, versions[0] if versions else "")

    def _claim_top_level(self, found: _Found) -> None:
        """Without a list of files: what it says are its packages, else the one of its name."""
        for name in self._text("top_level.txt").splitlines() or [self._module]:
            if name and "/" not in name:
                found.claim(f"{name}/__init__.py", self.origin)
                found.claim(f"{name}.py", self.origin)

    def _developed(self) -> CodeOrigin:
        kind = Kind.LIBRARY if self.origin.name == OWN_NAME else Kind.APPLICATION
        return CodeOrigin(kind, self.origin.name, self.origin.version)

    def _project(self) -> str | None:
        """The directory that an editable install is of. What was installed from a directory is the application's.

        Unless a packager has done that: what conda has built says so too, all of it.
        """
        try:
            content = json.loads(self._text("direct_url.json"))
            directory = content.get("dir_info")
            url = urlsplit(content["url"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(directory, dict) or not self._text("INSTALLER").startswith(_DEVELOPERS_INSTALLERS):
            return None
        self.origin = self._developed()
        return unquote(url.path).rstrip("/") or None if directory.get("editable") and url.scheme == "file" else None

    def _pointed_to(self, name: str) -> Iterator[str]:
        """The places that a ``.pth`` file or the module of an editable install leads to."""
        if name.endswith(".pth"):
            for line in self._folder.read(name).splitlines():
                if line.strip() and not line.startswith(("import ", "import\t", "#")):
                    yield posixpath.normpath(posixpath.join(self._entry, line.strip()))
        elif name.endswith(".py"):
            yield from _redirected(name.removesuffix(".py"))


def _module(path: str) -> str:
    """The source file of a module that is delivered as this, perhaps without it; empty if it is no module."""
    if path.endswith(".py") or (path.endswith(".pyc") and "__pycache__/" not in path):
        return path.removesuffix("c")
    return ""


def normalised(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return _SEPARATORS.sub("-", name).lower()


def _redirected(module: str) -> Iterator[str]:
    """Where the finder that `module` has installed looks: setuptools keeps that in the module, others in the finder."""
    holders = [values_of(sys.modules.get(module))]
    for finder in list(sys.meta_path):
        if type(finder).__module__ == module:
            with suppress(Exception):  # an instance without a dictionary
                holders.append(object.__getattribute__(finder, "__dict__"))
    paths = {
        target
        for holder in holders
        for value in list(holder.values())
        if type(value) is dict
        for target in list(value.values())[:_MOST_REDIRECTIONS]
        if type(target) is str and target.startswith("/")
    }
    packages = {path.removesuffix("/__init__.py") for path in paths if not path.endswith(".py")}
    packages |= {path.rpartition("/")[0] for path in paths if path.endswith("/__init__.py")}
    for path in packages:
        there = os.path.isdir(path)  # noqa: PTH112  # raises for no path
        yield path if there else f"{path}.py"  # of a module setuptools knows all but that
    yield from (path for path in paths if path.endswith(".py") and path.rpartition("/")[0] not in packages)


def values_of(module: Any) -> dict[str, Any]:
    """The globals of a module, without an access that could run code; empty if it is none."""
    if not issubclass(type(module), ModuleType):
        return {}
    found = vars(ModuleType)["__dict__"].__get__(module)
    return found if isinstance(found, dict) else {}
