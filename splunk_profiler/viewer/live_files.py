"""Profiles, and files of OTLP/JSON that may still grow, read into a `Recording`: each call reads what is new."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from splunk_profiler.viewer.otlp_files import PROFILE_SUFFIXES, REQUEST_SUFFIXES, SNAPSHOT, SourceError, find_files
from splunk_profiler.viewer.profile_messages import ProfileDecoder
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import RecordReader, make_sender
from splunk_profiler.viewer.source import Source

_SUFFIXES = (*REQUEST_SUFFIXES, *PROFILE_SUFFIXES)
_SPEEDSCOPE_SUFFIX = ".speedscope.json"
_PROFILE_NAME = re.compile(
    r"(?P<service>.*)-\d{8}T\d{9}Z-(?P<pid>\d+)-(?P<run>[0-9a-f]{8})-\d+(?P<kind>(-[a-z]+)*)\.pprof"
)
_PROFILE_SUFFIX = re.compile(f"({'|'.join(map(re.escape, PROFILE_SUFFIXES))})$")


class _FileState(NamedTuple):
    inode: int
    size: int
    modified_ns: int


class LiveFiles(Source):
    """The content of a directory's files, or of a file.

    Raises:
        SourceError: there are no files, or the file is not of a kind that is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        find_files(path, _SUFFIXES)
        if not path.is_dir() and not _is_readable(path):
            raise SourceError(
                f"{path} is neither a store nor a kept stream, or its first bytes are damaged; other files that are "
                f"read end with {', '.join(_SUFFIXES)}, or begin with {{ (lines of OTLP/JSON); of what the page saves, "
                "only pprof is read"
            )
        self._start()

    def _start(self) -> None:
        self.recording = Recording()
        self._reader = RecordReader(self.recording)
        self._read_up_to: dict[Path, tuple[int, int]] = {}  # inode and offset
        self._profiles: dict[Path, _FileState] = {}  # when they were read; a service removes the oldest
        self._unread_profiles: dict[Path, str] = {}  # with the reason

    def refresh(self) -> None:
        """Read what has been added since; all from the start if a file that was read was replaced or cut.

        Raises:
            SourceError: a file cannot be read.
        """
        path = self.path
        try:
            states = self._known_files()
            for gone in self._unread_profiles.keys() - states:
                del self._unread_profiles[gone], self._profiles[gone]
                self.version += 1
            for path, state in states.items():
                self._read(path, state)
            self.unread = self._reader.unread + len(self._unread_profiles)
            self.remark = self._reasons()
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from None

    def _reasons(self) -> str:
        """Return why a profile could not be read, and how many others could not."""
        if not self._unread_profiles:
            return ""
        path, reason = next(iter(self._unread_profiles.items()))
        more = len(self._unread_profiles) - 1
        others = f"; {more:,} other file{'s'[: more > 1]} could not be read either" if more else ""
        return f"{path.name}: {reason}{others}."

    def _known_files(self) -> dict[Path, _FileState | None]:
        """Return the files as they are; forget all that was read if one of them is another now."""
        states = {file: _state(file) for file in find_files(self.path, _SUFFIXES)}
        if any(self._is_replaced(file, states.get(file)) for file in (*self._read_up_to, *self._profiles)):
            self._start()
            self.version += 1
        return states

    def _is_replaced(self, file: Path, state: _FileState | None) -> bool:
        if file in self._profiles:  # those that could not be read were perhaps being written
            return file not in self._unread_profiles and state not in {None, self._profiles[file]}
        inode, offset = self._read_up_to[file]
        return state is None or state.inode != inode or state.size < offset

    def _read(self, path: Path, state: _FileState | None) -> None:
        if path.name.endswith(PROFILE_SUFFIXES):
            if state not in {None, self._profiles.get(path)}:
                self._read_profile(path, state)
            return
        with path.open("rb") as file:
            inode, offset = self._read_up_to.get(path, (os.fstat(file.fileno()).st_ino, 0))
            file.seek(offset)
            for line in _whole_lines(file):
                offset += len(line)
                self._read_up_to[path] = inode, offset  # first: no line is read twice, whatever is in it
                if line.strip():
                    self._reader.add_request(line)
                    self.version += 1

    def _read_profile(self, path: Path, state: _FileState) -> None:
        self._profiles[path] = state
        self.version += 1
        found = _PROFILE_NAME.fullmatch(path.name)
        if found is not None and found["kind"].endswith(f"-{SNAPSHOT}"):
            return
        names = (_PROFILE_SUFFIX.sub("", path.name), "", "") if found is None else found.group("service", "pid", "run")
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # the oldest are removed
            return
        try:
            self._reader.add_message(make_sender(names[0], "", "", *names[1:]), ProfileDecoder().decode(content))
            self._unread_profiles.pop(path, None)
        except ValueError as error:
            self._unread_profiles[path] = str(error)


def _state(path: Path) -> _FileState | None:
    """Return the state of a file; None if there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return _FileState(status.st_ino, status.st_size, status.st_mtime_ns)
    return None


def _is_readable(path: Path) -> bool:
    """Return True for a file that is read, as its name or its beginning tells."""
    if path.name.endswith(_SUFFIXES):
        return not path.name.endswith(_SPEEDSCOPE_SUFFIX)
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; the last one may be a part as yet, unless it is JSON."""
    for line in file:
        if not line.endswith(b"\n"):
            try:
                json.loads(line)
            except (RecursionError, ValueError):
                return
        yield line
