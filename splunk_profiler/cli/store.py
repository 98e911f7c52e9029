"""The collector's files: lines of JSON, one OTLP request in each.

The format of the OpenTelemetry Collector's file exporter. Runs on the receiver's threads, one at a time for each file.

Only their owner can read the files, and the directory if it is made here; existing files are made private.

An appended line has been handed to the operating system whole, so it survives the end of the process; with `sync` it is
on the disk. A line that could not be written whole leaves no trace.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.system.private_files import make_directory, make_private, open_private

DEFAULT_DIRECTORY = "profiles"
LOGS = "logs.jsonl"
TRACES = "traces.jsonl"


_BLOCK_BYTES = 1 << 16


class StoreError(CommandError):
    """Error for a line that could not be saved; the lines before it are whole."""


class LineFile:
    """A file of `size` bytes of whole lines, written by one process at a time.

    Raises:
        StoreError: the file cannot be opened for writing, or another collector writes to it.
    """

    def __init__(self, path: Path, *, sync: bool) -> None:
        self.path = path
        self._sync = sync
        self._lock = threading.Lock()
        try:
            self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise StoreError(f"{path} is being written by another collector; name another directory") from None
        try:
            make_private(self._descriptor)
        except OSError:
            os.close(self._descriptor)
            raise StoreError(f"{path} belongs to another user, who could read it; name another directory") from None
        self.size = self._recover_whole_lines()

    def append(self, value: Any) -> None:
        """Write `value` as one line of JSON.

        Raises:
            StoreError: it could not be written; the file ends with the line before.
        """
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            try:
                # Removes the part of a line that a failed append could not remove.
                os.ftruncate(self._descriptor, self.size)
                written = 0
                while written < len(line):
                    written += os.pwrite(self._descriptor, memoryview(line)[written:], self.size + written)
                if self._sync:
                    os.fdatasync(self._descriptor)
            except OSError as error:
                with suppress(OSError):  # the next append truncates first
                    os.ftruncate(self._descriptor, self.size)
                raise StoreError(f"{self.path} cannot be written: {error.strerror}") from None
            self.size += len(line)

    def close(self) -> None:
        """Close the file and release its lock."""
        with self._lock:
            os.close(self._descriptor)

    def _recover_whole_lines(self) -> int:
        """Return the size without the partial line that a killed collector left; complete a line without its end."""
        size = os.fstat(self._descriptor).st_size
        end = size
        tail = b""
        while end and b"\n" not in tail:
            start = max(0, end - _BLOCK_BYTES)
            tail = os.pread(self._descriptor, end - start, start) + tail
            end = start
        partial_line = tail[tail.rfind(b"\n") + 1 :]
        if not partial_line:
            return size
        try:
            json.loads(partial_line)
        except ValueError:
            return size - len(partial_line)
        # A whole line without its newline, as other programs write it.
        os.pwrite(self._descriptor, b"\n", size)
        return size + 1


class Saved(Protocol):
    """A place that the collector saves to; `path` is named to the user."""

    path: Path

    def append(self, request: Any, *, is_traces: bool) -> None:
        """Add a request of spans or logs; `StoreError` if that fails."""

    @property
    def size(self) -> int:
        """Bytes in use."""

    def close(self) -> None:
        """Close it."""


class Store:
    """The directory in which requests are saved.

    Raises:
        StoreError: the directory cannot be made or written.
    """

    def __init__(self, directory: Path, *, sync: bool = False) -> None:
        self.path = directory
        try:
            make_directory(directory)
        except OSError as error:
            raise StoreError(f"{directory} cannot be made: {error.strerror}") from None
        self._logs = LineFile(directory / LOGS, sync=sync)
        try:
            self._traces = LineFile(directory / TRACES, sync=sync)
        except StoreError:
            self._logs.close()
            raise

    def append(self, request: Any, *, is_traces: bool) -> None:
        """Add a request of spans or logs; `StoreError` if that fails."""
        (self._traces if is_traces else self._logs).append(request)

    @property
    def size(self) -> int:
        """Saved bytes, those of earlier runs included."""
        return self._logs.size + self._traces.size

    def close(self) -> None:
        """Close the files."""
        self._logs.close()
        self._traces.close()
