"""A sink that writes each profile to its own file, in a directory that processes may share.

`export` runs on the exporting thread, the rest on any. Scanning a large directory takes seconds
beside busy threads, because each entry costs the GIL. A scan therefore runs seldom, after the
profile is written, and ends early if another thread waits for the export.

Only the owner can read the files, and the directory if it is made here. A profile is written under
a name with a leading dot and then renamed, so readers see whole profiles only. The writer locks the
file: an unlocked temporary file belongs to a process that has ended, in any container. Nothing is
synced to the disk: files outlive the process, but not a crash of the machine.

The limits count all files of a service, because a service restarts and has many workers. On a full
disk, each profile removes only as many old bytes as it needs. A disk that others have filled
therefore does not cost all profiles.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from splunk_profiler.code_origin.classifier import CodeClassifier
from splunk_profiler.config.parsers import Directory
from splunk_profiler.export.sink_context import Resource, SinkContext
from splunk_profiler.formats import pprof
from splunk_profiler.model import DataType
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, InstrumentationSource, Profile
from splunk_profiler.system import clocks
from splunk_profiler.system.gil import yield_gil
from splunk_profiler.system.guard import logger
from splunk_profiler.system.private_files import make_directory, open_private
from splunk_profiler.system.threads import OwnedLock

MAX_FILES = 10_000
MAX_BYTES = 512 << 20
_MIN_FILES_BETWEEN_SCANS = 16
_SCAN_INTERVAL_RATIO = 0.01  # files between two scans, as a share of those that the last one found
_MAX_FINAL_SCAN_S = 0.3
_LOCK_GRACE_S = 2.0  # a file is made before it is locked
_ABANDONED_AFTER_S = 3600.0  # on a file system without locks
_MAX_CLOCK_SKEW_NS = 3600 * 1_000_000_000  # between machines that share a directory
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_MAX_SERVICE_NAME_LENGTH = 80
_KIND_SUFFIXES = "|".join(each.value for each in (*DataType, *InstrumentationSource))
_FILE_NAME_END = rf"-([0-9]{{8}}T[0-9]{{9}}Z)-[0-9]+-[0-9a-f]{{8}}-[0-9]+(?:-(?:{_KIND_SUFFIXES}))*\.pprof"


class DirectorySink:
    """A directory that takes profiles as files.

    Args:
        directory: its path; made if it is missing.
        resource: returns the resource of the process, for the service's name and the runtime id.
        max_files: approximate limit of the service's files; the oldest are removed first.
        max_bytes: approximate limit of their size in all.
    """

    def __init__(
        self,
        directory: Path,
        resource: Callable[[], Resource],
        classifier: CodeClassifier | None = None,
        *,
        max_files: int = MAX_FILES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._directory = directory
        self._resource = resource
        self._classifier = classifier or CodeClassifier()
        self._max_files, self._max_bytes = max_files, max_bytes
        self._run_id = os.urandom(4).hex()  # processes in two containers may have the same id
        self._files_written = 0
        self._next_scan_at = 1  # in files written
        self._is_interrupted = False
        self._max_scan_s = math.inf
        self._has_warned = False
        self._disk_full_profile: Profile | None = None  # old files have been removed for it
        self._is_closed = False
        self._lock = OwnedLock()

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """Write `batch`, each profile whole or not at all."""
        with self._lock:
            if self._is_closed:
                return ExportResult(ExportStatus.RETRY, "the sink is closed")
            try:
                for profile in batch.records:
                    self._write_profile(profile)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                text = f"profiles cannot be written to {self._directory} ({reason}); see SPLUNK_PROFILER_OUTPUT"
                return ExportResult(ExportStatus.RETRY, text)
            finally:
                self._is_interrupted = False
            return ExportResult(ExportStatus.DELIVERED)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Limit the next scans to a part of `timeout_s`; a write itself has no limit."""
        self._max_scan_s = min(timeout_s / 4, _MAX_FINAL_SCAN_S)

    def interrupt(self) -> None:
        """End a scan early; a write goes on."""
        self._is_interrupted = True

    def shutdown(self) -> None:
        """End a scan early and refuse later exports."""
        self._is_closed = True

    def _write_profile(self, profile: Profile) -> None:
        origin_of = self._classifier.refresh(yield_gil)
        resource = self._resource()
        runtime_id = resource.attributes.get("runtime-id", "")
        comments = (f"runtime-id={runtime_id}",) if runtime_id else ()  # links the file, without a resource, to spans
        content = pprof.encode_whole(profile, pause=yield_gil, origin_of=origin_of, comments=comments).gzipped
        make_directory(self._directory)
        service, pid = _service_name(resource), resource.attributes.get("process.pid", os.getpid())
        self._files_written += 1
        suffix = "" if profile.data_type is DataType.CPU else f"-{profile.data_type.value}"
        suffix += "-snapshot" if profile.source is InstrumentationSource.SNAPSHOT else ""
        name = f"{service}-{_format_time(profile.time_ns)}-{pid}-{self._run_id}-{self._files_written}{suffix}.pprof"
        try:
            self._write(name, content)
        except OSError as error:
            if error.errno not in _DISK_FULL_ERRNOS or profile is self._disk_full_profile:
                raise
            self._disk_full_profile = profile
            self._remove_old_files(service, len(content), full=True)
            self._write(name, content)
        self._disk_full_profile = None
        if self._files_written >= self._next_scan_at:
            self._scan_directory(service)

    def _scan_directory(self, service: str) -> None:
        try:
            found = self._remove_old_files(service, 0)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                reason = error.strerror or type(error).__name__
                logger.warning("old profiles in %s are not removed: it cannot be listed (%s)", self._directory, reason)
            found = 0
        self._next_scan_at = self._files_written + max(_MIN_FILES_BETWEEN_SCANS, int(found * _SCAN_INTERVAL_RATIO))

    def _write(self, name: str, content: bytes) -> None:
        path = self._directory / f".{name}.tmp"
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remaining = memoryview(content)
            while remaining:  # a disk takes a part before it is full
                remaining = remaining[os.write(descriptor, remaining) :]
            # Some file systems report a full disk on close only. The other descriptor keeps the lock.
            os.close(os.dup(descriptor))
            path.rename(self._directory / name)
        finally:
            with suppress(OSError):
                os.close(descriptor)
            with suppress(OSError):  # renamed
                path.unlink()

    def _remove_old_files(self, service: str, needed_bytes: int, *, full: bool = False) -> int:
        """Remove abandoned temporary files and the oldest profiles of `service`; return the number of profiles.

        Returns 0, with no profile removed, if another thread ends the scan. On a `full` disk,
        `needed_bytes`, the size of the profile to be written, are removed even below the limits.
        """
        start_s = clocks.monotonic()
        name_pattern = re.escape(service) + _FILE_NAME_END
        profile_name, temporary_name = re.compile(name_pattern), re.compile(rf"\.{name_pattern}\.tmp")
        latest = _format_time(time.time_ns() + _MAX_CLOCK_SKEW_NS)
        files: list[tuple[bool, str, int]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                # An ending process scans too: it may write one only.
                if self._is_interrupted or self._is_closed or clocks.monotonic() - start_s > self._max_scan_s:
                    return 0
                with suppress(OSError):  # another process removed the file, or owns it
                    if match := profile_name.fullmatch(entry.name):
                        # Files from before the clock was set back must not count as the newest.
                        is_past = match[1] <= latest
                        files.append((is_past, entry.name, entry.stat(follow_symlinks=False).st_size))
                    elif temporary_name.fullmatch(entry.name):
                        _remove_abandoned(Path(entry.path))
        files.sort()  # by time, which follows the service in the name
        file_count, total_bytes = len(files) + bool(needed_bytes), sum(size for _, _, size in files) + needed_bytes
        max_bytes = self._max_bytes
        if full and total_bytes >= 2 * needed_bytes:  # else the old files are too small
            max_bytes = min(max_bytes, total_bytes - needed_bytes)
        for _, name, size in files:
            if file_count <= self._max_files and total_bytes <= max_bytes:
                break
            with suppress(OSError):
                (self._directory / name).unlink()
            file_count, total_bytes = file_count - 1, total_bytes - size
        return len(files)


def open_sink(context: SinkContext) -> DirectorySink:
    """Make the sink for a `Directory`."""
    destination = context.resolved.destination
    assert isinstance(destination, Directory)
    return DirectorySink(Path(destination.path), context.resource, context.classifier)


def _remove_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        age_s = abs(time.time() - os.fstat(descriptor).st_mtime)  # negative after the clock was set back
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            abandoned = age_s > _LOCK_GRACE_S
        except BlockingIOError:  # a process is writing it
            abandoned = False
        except OSError:
            abandoned = age_s > _ABANDONED_AFTER_S
        if abandoned:
            path.unlink()
    finally:
        os.close(descriptor)


def _service_name(resource: Resource) -> str:
    """Return the service's name, escaped for a file name."""
    name = resource.attributes.get("service.name")
    text = name.lstrip(".") if isinstance(name, str) else ""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_MAX_SERVICE_NAME_LENGTH] or "unknown"


def _format_time(time_ns: int) -> str:
    """Format a time in UTC, to the millisecond; its text sorts like the time."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}{time_ns // 1_000_000 % 1000:03}Z"
