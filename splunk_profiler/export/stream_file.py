"""The stream of a process, kept in a file for `splunk-profiler replay`.

The sampling worker's thread writes. Only the owner can read the file, and the directory if it is made here.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from splunk_profiler.system.guard import logger
from splunk_profiler.system.private_files import make_directory, open_private

MAX_BYTES = 512 << 20


class StreamFile:
    """A file that takes a stream, up to `max_bytes`; made with the first bytes."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._left = max_bytes
        self._descriptor = -1
        self._size = 0
        self._failure = ""
        self.path: Path | None = None

    def start(self) -> None:
        """Do nothing."""

    def send(self, data: bytes) -> bool:
        """Write `data` whole, or nothing of it; return True if it is written."""
        if len(data) > self._left:
            self._fail(f"the stream has {self._size >> 20} MiB, and more is not kept")
            return False
        try:
            if self._descriptor < 0:
                self._open()
            self._write(data)
        except OSError as error:
            self._fail(f"the stream cannot be written to {self._directory}: {error.strerror or error}")
            return False
        self._left -= len(data)
        self._size += len(data)
        return True

    def stop(self, timeout_s: float) -> None:  # noqa: ARG002  # as other outputs
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        self._left = 0
        if descriptor >= 0:
            os.close(descriptor)

    def fork_participants(self) -> list[Any]:
        """Return nothing: a child has a file of its own."""
        return []

    def abandon(self) -> bool:
        """Return True: a forked child can start anew."""
        return True

    def cpu_ns(self) -> int:
        """Return 0: writing is part of the worker's time."""
        return 0

    def _open(self) -> None:
        make_directory(self._directory)
        now = datetime.fromtimestamp(time.time(), timezone.utc)
        name = f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{os.urandom(4).hex()}.stream"
        self.path = self._directory / name
        self._descriptor = open_private(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)  # a reader must find whole records
                os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise

    def _fail(self, text: str) -> None:
        if text != self._failure:
            self._failure = text
            logger.warning("%s (SPLUNK_PROFILER_OUTPUT)", text)
