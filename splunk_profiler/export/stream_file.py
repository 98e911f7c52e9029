"""The stream of a process, kept in a file for `splunk-profiler replay`.

The sampler thread writes. Only the owner can read the file, and the directory if it is made here. The file is
open only for each write: applications close descriptors that they do not know, and use the numbers for files of theirs.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from splunk_profiler.export.stream_output import StreamOutput
from splunk_profiler.system.guard import logger
from splunk_profiler.system.private_files import make_directory, open_private

MAX_BYTES = 512 << 20


class StreamFile(StreamOutput):
    """A file that takes a stream, up to `max_bytes`; made with the first bytes."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._size = 0
        self._is_ended = False
        self._failure = ""
        self.path: Path | None = None

    def send(self, data: bytes) -> bool:
        """Write `data` whole, or nothing of it; return False if later data may be written, in a new stream."""
        if self._is_ended:
            return True
        try:
            if not self._write(data):
                self._is_ended = True
                self._fail(f"the stream has {self._size >> 20} MiB, and more is not kept")
                return True
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, FileNotFoundError) and self.path is not None:
                self.path, self._size = None, 0
                reason += "; a new file is begun"
            self._fail(f"the stream cannot be written to {self._directory}: {reason}")
            return False
        self._size += len(data)
        return True

    def stop(self, timeout_s: float) -> None:  # noqa: ARG002  # as other outputs
        """Take no more."""
        self._is_ended = True

    def _open(self) -> int:
        if self.path is not None:
            return open_private(self.path, os.O_WRONLY | os.O_APPEND)
        make_directory(self._directory)
        now = datetime.fromtimestamp(time.time(), timezone.utc)
        path = self._directory / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{os.urandom(4).hex()}.stream"
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.path = path
        return descriptor

    def _write(self, data: bytes) -> bool:
        """Return False if there is no room."""
        rest = memoryview(data)
        descriptor = self._open()
        try:
            if os.fstat(descriptor).st_size < self._size:
                raise FileNotFoundError(errno.ENOENT, "the beginning of the file was removed")
            if self._size + len(data) > self._max_bytes:
                return False
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, self._size)  # a reader must find whole records
                raise
        finally:
            os.close(descriptor)
        return True

    def _fail(self, text: str) -> None:
        if text != self._failure:
            self._failure = text
            logger.warning("%s (SPLUNK_PROFILER_OUTPUT)", text)
