"""The installed distributions of an entry of ``sys.path``, by directory and file.

Reads the files of installers (``RECORD``, ``direct_url.json``, ``top_level.txt``, ``.pth``), in directories
and zip files, and the finders of editable installs. The exporting thread runs it in steps of about a
millisecond. Runs no code of the application and imports nothing at run time. `importlib.metadata` does
both (tests/unit/code_origin/test_importlib_metadata.py).

Specifications: "Recording installed projects", "Recording the Direct URL Origin" of the packaging guide.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401  # zipfile imports it at its first name
import errno
import json
import os
import posixpath
import re
import sys
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from splunk_profiler.samples import CodeOrigin, OriginKind

SITE_DIRECTORIES = ("site-packages", "dist-packages")

OWN_NAME = "splunk-profiler"  # a library, even as an editable install
OWN_PACKAGE = posixpath.dirname(posixpath.dirname(__file__))
_MAX_FILE_BYTES = 8 << 20
_MAX_DIRECTORIES = 50_000
_MAX_REDIRECTIONS = 5_000
_LINES_PER_STEP = 1000  # lines between two steps
_NAMES_PER_STEP = 64  # names of a directory between two steps
_SEPARATORS = re.compile(r"[-_.]+")
_DEVELOPER_INSTALLERS = ("pip", "uv", "poetry", "pdm")
_METADATA_SUFFIXES = (".dist-info", ".egg-info")
_EGG_METADATA = "EGG-INFO"
_PASSING_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)

Steps: TypeAlias = Generator[None, None, dict[str, CodeOrigin]]


class _Directory:
    """A directory on disk: the names of its direct children and the text of files, empty if not readable.

    Raises `OSError` where another try may succeed: no descriptor is free, or a file system is not there for a moment.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> Iterator[str]:
        with _passing_errors_only(), os.scandir(self._path) as entries:
            for entry in entries:  # each step releases the GIL
                yield entry.name

    def read(self, name: str) -> str:
        # Makes few system calls, as each releases the GIL; none may block, whatever kind of file this is.
        with _passing_errors_only():
            file = os.open(f"{self._path}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return os.read(file, _MAX_FILE_BYTES).decode("utf-8", "replace")
            finally:
                os.close(file)
        return ""


@contextmanager
def _passing_errors_only() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _PASSING_ERRNOS:
            raise


class _Archive:
    """A directory in a zip file, or all of it. Raises `OSError` or `zipfile.BadZipFile`."""

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
        except Exception:  # missing, broken, encrypted or in an unknown compression
            return ""


_Folder: TypeAlias = _Directory | _Archive


def read_entry(entry: str) -> Steps:
    """Return the origins of absolute paths under `entry`, and of those its editable installs point to.

    The longest path decides about a file: its own, else that of the nearest directory. Yields after each step.
    """
    folder = _folder(entry)
    if folder is None:
        return {}
    index = _EntryIndex()
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
        yield from each.index_modules(index)
        yield
    shared = {origin for origins in index.shared.values() for origin in origins}
    for each in installed:
        if each.origin in shared:
            yield from each.index_shared_modules(index)
    yield
    base = entry.rstrip("/")
    return {**{f"{base}/{path}": origin for path, origin in index.compact().items()}, **index.absolute_paths}


def _folder(entry: str) -> _Folder | None:
    with suppress(ValueError, zipfile.BadZipFile, NotImplementedError), _passing_errors_only():
        if Path(entry).is_dir():
            return _Directory(entry)
        archive, prefix = entry.rstrip("/"), ""
        while archive and not os.path.lexists(archive):  # an entry may be a directory in a zip file
            archive, _, name = archive.rpartition("/")
            prefix = f"{name}/{prefix}"
        return _Archive(archive, prefix) if Path(archive).is_file() else None
    return None


@dataclass(slots=True)
class _EntryIndex:
    """The origins of paths under an entry, relative to it, and of absolute paths of editable installs.

    Attributes:
        directories: by the first distribution with modules in them.
        shared: directories of several distributions.
        files: single modules, where the directory does not decide.
    """

    directories: dict[str, CodeOrigin] = field(default_factory=dict)
    shared: dict[str, set[CodeOrigin]] = field(default_factory=dict)
    files: dict[str, CodeOrigin] = field(default_factory=dict)
    absolute_paths: dict[str, CodeOrigin] = field(default_factory=dict)

    def add_module(self, path: str, origin: CodeOrigin) -> None:
        """Record a module of the distribution `origin`."""
        directory = path.rpartition("/")[0]
        if not directory:
            self.files[path] = origin
        elif (known := self.directories.get(directory)) is None:
            if len(self.directories) < _MAX_DIRECTORIES:
                self.directories[directory] = origin
        elif known != origin:
            self.shared.setdefault(directory, {known}).add(origin)

    def compact(self) -> dict[str, CodeOrigin]:
        """Return all paths but directories with the origin of the next known directory above them."""
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
    """A ``.dist-info`` or ``.egg-info`` of a folder, or the folder itself if it is an egg."""

    def __init__(self, folder: _Folder, metadata: str, entry: str) -> None:
        self._folder, self._metadata, self._entry = folder, metadata, entry.rstrip("/")
        named = metadata if metadata != _EGG_METADATA else posixpath.basename(self._entry)
        stem, _, self._kind = named.rpartition(".")
        name, _, version = stem.partition("-")
        if self._kind != "dist-info":
            version = version.partition("-py")[0]
        self._module = name
        in_site = self._entry.endswith(SITE_DIRECTORIES)
        is_editable = self._kind == "egg-info" and not in_site  # beside the source: from `setup.py develop`
        kind = OriginKind.APPLICATION if is_editable else OriginKind.LIBRARY
        normalized_name = _SEPARATORS.sub("-", name).lower()  # as package indexes compare it
        self.origin = CodeOrigin(kind, normalized_name, version)

    def index_modules(self, index: _EntryIndex) -> Iterator[None]:
        """Add the modules and paths of this distribution to `index`; yield after each step."""
        if self._kind == "egg":
            index.absolute_paths[self._entry] = self.origin
            return
        if self._kind == "egg-info" and not self.origin.version:
            self._read_version()
        text = self._text("RECORD") or self._text("installed-files.txt")
        project = self._read_editable_directory() if f"{self._metadata}/direct_url.json" in text else None
        editable_files: list[str] = []
        scripts: list[str] = []
        for number, line in enumerate(text.splitlines(), 1):
            if number % _LINES_PER_STEP == 0:
                yield
            if (path := self._path(line)) is None:
                if "/bin/" in line:  # a script that starts a service: `gunicorn`
                    scripts.append(posixpath.join(self._entry, line.partition(",")[0]))
                continue
            if "/" not in path and (path.endswith(".pth") or "editable" in path):
                editable_files.append(path)
            elif module := _module(path):
                index.add_module(module, self.origin)
        if not text:
            self._index_top_level(index)
        yield
        self._index_paths(index, editable_files, project, scripts)

    def index_shared_modules(self, index: _EntryIndex) -> Iterator[None]:
        """Add the single modules of this distribution in shared directories; yield after each step."""
        for number, line in enumerate(self._text("RECORD").splitlines(), 1):
            if number % _LINES_PER_STEP == 0:
                yield
            path = self._path(line)
            if path is not None and (module := _module(path)) and module.rpartition("/")[0] in index.shared:
                index.files[module] = self.origin

    def _text(self, name: str) -> str:
        return self._folder.read(f"{self._metadata}/{name}")

    def _path(self, line: str) -> str | None:
        """Return the path in a line of a RECORD or ``installed-files.txt``; None if it is not under the entry."""
        path = line[1:].partition('"')[0] if line.startswith('"') else line.partition(",")[0]
        if self._kind == "egg-info":
            path = posixpath.normpath(f"{self._metadata}/{path}")
        return None if not path or path.startswith(("../", "/")) else path

    def _read_version(self) -> None:
        info = self._text("PKG-INFO").splitlines()
        version = next((line.partition(":")[2].strip() for line in info if line.startswith("Version:")), "")
        self.origin = self.origin._replace(version=version)

    def _index_top_level(self, index: _EntryIndex) -> None:
        """Add the packages of ``top_level.txt``, else the one of its own name; there is no list of files."""
        for name in self._text("top_level.txt").splitlines() or [self._module]:
            if name and "/" not in name:
                index.add_module(f"{name}/__init__.py", self.origin)
                index.add_module(f"{name}.py", self.origin)

    def _index_paths(
        self, index: _EntryIndex, editable_files: list[str], project: str | None, scripts: list[str]
    ) -> None:
        """Add the absolute paths of editable installs, and the scripts; paths outside the entry are editable."""
        paths = [path for name in editable_files for path in self._iter_targets(name)]
        if self.origin.name == OWN_NAME:
            paths = [OWN_PACKAGE]  # without the rest of the project, such as its examples
        elif project is not None and not paths:
            paths = [project]
        prefix = f"{self._entry}/"  # a library may add a path under its own entry
        outside = [path for path in paths if not path.startswith(prefix)]
        index.absolute_paths.update((path, self.origin) for path in paths)
        index.absolute_paths.update((path, self._editable_origin()) for path in outside)
        script_origin = self._editable_origin() if outside else self.origin
        index.absolute_paths.update((posixpath.normpath(script), script_origin) for script in scripts)

    def _editable_origin(self) -> CodeOrigin:
        return self.origin._replace(kind=OriginKind.LIBRARY if self.origin.name == OWN_NAME else OriginKind.APPLICATION)

    def _read_editable_directory(self) -> str | None:
        """Return the directory of an editable install; set the origin of an install from a directory.

        Such an install is the application's, unless a packager made it: everything that conda builds says
        that it came from a directory.
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
        """Yield the paths in a ``.pth`` file or in the finder of an editable install."""
        if name.endswith(".pth"):
            for line in self._folder.read(name).splitlines():
                if line.strip() and not line.startswith(("import ", "import\t", "#")):
                    yield posixpath.normpath(posixpath.join(self._entry, line.strip()))
        elif name.endswith(".py"):
            yield from _iter_finder_targets(name.removesuffix(".py"))


def _module(path: str) -> str:
    """Return the source file of a delivered module (``.py`` or sourceless ``.pyc``); empty for other files."""
    if path.endswith(".py") or (path.endswith(".pyc") and "__pycache__/" not in path):
        return path.removesuffix("c")
    return ""


def _iter_finder_targets(module: str) -> Iterator[str]:
    """Yield the paths of the finder from `module`; setuptools has them in the module, others in the finder."""
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
        yield path if is_directory else f"{path}.py"  # setuptools leaves out the suffix
    yield from (path for path in paths if path.endswith(".py") and path.rpartition("/")[0] not in packages)


def module_globals(module: Any) -> dict[str, Any]:
    """Return the globals of a module without running any code; empty for other objects."""
    if not issubclass(type(module), ModuleType):
        return {}
    found = vars(ModuleType)["__dict__"].__get__(module)
    return found if isinstance(found, dict) else {}
