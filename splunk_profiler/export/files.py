"""Writes each profile to a file of its own in a directory that many processes may share, and keeps that bounded.

`export` runs on the exporting thread, the rest on any. Beside busy threads to look through a large directory takes
seconds, since each of its entries costs the GIL: that is done when the profile is written, seldom, and ends when
somebody waits. Only their owner can read the files, and the directory where it is made here. A profile is written
under a name that begins with a dot and then renamed, so that whoever looks sees whole profiles only. The file is locked
while it is written: a temporary one that is not locked belongs to a process that is gone, however it ended and in
whichever container it ran. Nothing is synced to the disk: what is written outlives the process, not a crash of the
machine, and nobody waits for the disk.

What is kept is bounded for each service, whichever of its processes wrote it: a service is restarted again and again,
and its workers are many. On a full disk too the oldest go: as much of them for each profile as it takes itself, so that
a disk that others fill does not cost what there is.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from splunk_profiler.code_origin.classifier import CodeClassifier
from splunk_profiler.config.parsers import Directory
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.formats import pprof
from splunk_profiler.model import Batch, DataType, ExportResult, ExportStatus, InstrumentationSource, Profile
from splunk_profiler.system.guard import logger
from splunk_profiler.system.private_files import make_directory, open_private
from splunk_profiler.system.threads import real_lock, yield_gil

if TYPE_CHECKING:
    from splunk_profiler.export.otlp.sample_records import Resource  # it loads OpenTelemetry's messages

MAX_FILES = 10_000
MAX_BYTES = 512 << 20
_MIN_FILES_BETWEEN_SCANS = 16  # files of ours between two looks at how much there is, at least
_SCAN_INTERVAL_RATIO = 0.01  # of the files that there were
_MAX_FINAL_SCAN_S = 0.3
_LOCK_GRACE_S = 2.0  # a file is made before it is locked
_ABANDONED_AFTER_S = 3600.0  # where the file system knows no locks
_MAX_CLOCK_SKEW_NS = 3600 * 1_000_000_000  # clocks of machines that share a directory differ by less
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_MAX_SERVICE_NAME_LENGTH = 80
_KIND_SUFFIXES = "|".join(each.value for each in (*DataType, *InstrumentationSource))
_FILE_NAME_PATTERN = (
    rf"{{}}-([0-9]{{{{8}}}}T[0-9]{{{{9}}}}Z)-[0-9]+-[0-9a-f]{{{{8}}}}-[0-9]+(?:-(?:{_KIND_SUFFIXES}))*\.pprof"
)


class DirectorySink:
    """Files in a directory.

    Args:
        directory: where; made when it is missing.
        resource: the resource of the process, for the name of the service and the process's ids.
        classifier: whose code is in which file.
        max_files, max_bytes: how much of the service's is kept, about; the oldest go first.
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
        self._run_id = os.urandom(4).hex()  # containers that share a directory have processes of the same id
        self._files_written = 0
        self._next_scan_at = 1  # the number of the file after which is looked
        self._is_interrupted = False
        self._max_scan_s = math.inf
        self._has_warned = False
        self._disk_full_profile: Profile | None = None  # the disk was full; room has been made for it
        self._is_closed = False
        self._lock = real_lock()

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """See `Sink.export`. A profile is in the directory whole or not at all."""
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
            except Exception as error:
                return ExportResult(
                    ExportStatus.REJECTED, f"the profile cannot be encoded: {type(error).__name__}: {error}"
                )
            finally:
                self._is_interrupted = False
            return ExportResult(ExportStatus.DELIVERED)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """See `Sink.set_shutdown_deadline`: a write to a file cannot be made faster, but what is done besides can."""
        self._max_scan_s = min(timeout_s / 4, _MAX_FINAL_SCAN_S)

    def interrupt(self) -> None:
        """See `Sink.interrupt`: nor be ended early, but what is done besides is."""
        self._is_interrupted = True

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        self._is_closed = True

    def _write_profile(self, profile: Profile) -> None:
        origin_of = self._classifier.refresh(yield_gil)
        comments = _pprof_comments(self._resource())
        content = pprof.encode_whole(profile, pause=yield_gil, origin_of=origin_of, comments=comments).gzipped
        make_directory(self._directory)
        service, pid = _service_and_pid(self._resource())
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
        with _locked_temporary_file(self._directory / f".{name}.tmp") as (path, descriptor):
            remaining = memoryview(content)
            while remaining:  # a full disk takes a part before it refuses
                remaining = remaining[os.write(descriptor, remaining) :]
            # Some file systems say only at the end that they had no room. The lock goes with the last descriptor.
            os.close(os.dup(descriptor))
            path.rename(self._directory / name)

    def _remove_old_files(self, service: str, needed_bytes: int, *, full: bool = False) -> int:
        """Remove what the dead have left half-written, and the oldest profiles until there is room.

        Ends early, with nothing removed, when somebody waits for it. Returns how many profiles there were.

        Args:
            service: whose.
            needed_bytes: what is about to be written.
            full: the disk is; so many bytes go even if no more are there than are kept.
        """
        start_s = time.monotonic()
        name_pattern = _FILE_NAME_PATTERN.format(re.escape(service))
        profile_name, temporary_name = re.compile(name_pattern), re.compile(rf"\.{name_pattern}\.tmp")
        latest = _format_time(time.time_ns() + _MAX_CLOCK_SKEW_NS)
        files: list[tuple[bool, str, int]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if self._should_stop_scan(start_s):
                    return 0
                with suppress(OSError):  # another process makes room too; or the file is somebody else's
                    if match := profile_name.fullmatch(entry.name):
                        # From before the clock was set back, they would be the newest for as long as that was.
                        is_past = match[1] <= latest
                        files.append((is_past, entry.name, entry.stat(follow_symlinks=False).st_size))
                    elif temporary_name.fullmatch(entry.name):
                        _remove_abandoned(Path(entry.path))
        files.sort()  # of one service, the name begins with the time
        file_count, total_bytes = len(files) + bool(needed_bytes), sum(size for _, _, size in files) + needed_bytes
        max_bytes = self._max_bytes
        if full and total_bytes >= 2 * needed_bytes:  # else there is not so much that could go
            max_bytes = min(max_bytes, total_bytes - needed_bytes)
        for _, name, size in files:
            if file_count <= self._max_files and total_bytes <= max_bytes:
                break
            with suppress(OSError):
                (self._directory / name).unlink()
            file_count, total_bytes = file_count - 1, total_bytes - size
        return len(files)

    def _should_stop_scan(self, start_s: float) -> bool:
        """Whether to look no further. A process that ends takes its time too: some write one profile only."""
        return self._is_interrupted or self._is_closed or time.monotonic() - start_s > self._max_scan_s


def open_sink(context: SinkContext) -> DirectorySink:
    """The sink for a `Directory`."""
    destination = context.resolved.destination
    assert isinstance(destination, Directory)
    return DirectorySink(Path(destination.path), context.resource, context.classifier)


@contextmanager
def _locked_temporary_file(path: Path) -> Iterator[tuple[Path, int]]:
    """A new file at `path`, locked; removed if it is still there under that name in the end."""
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path, descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)
        with suppress(OSError):
            path.unlink()


def _remove_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        age_s = abs(time.time() - os.fstat(descriptor).st_mtime)  # or the clock was set back
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            abandoned = age_s > _LOCK_GRACE_S
        except BlockingIOError:  # somebody writes it
            abandoned = False
        except OSError:
            abandoned = age_s > _ABANDONED_AFTER_S
        if abandoned:
            path.unlink()
    finally:
        os.close(descriptor)


def _service_and_pid(resource: Resource) -> tuple[str, int]:
    """The service's name, as it may stand in that of a file, and the process's id."""
    name = str(resource.attributes.get("service.name", "")).lstrip(".")
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_MAX_SERVICE_NAME_LENGTH] or "unknown", os.getpid()


def _pprof_comments(resource: Resource) -> tuple[str, ...]:
    """A file has no resource around it: this is what leads from the spans of a process to its profiles."""
    runtime_id = resource.attributes.get("runtime-id", "")
    return (f"runtime-id={runtime_id}",) if runtime_id else ()


def _format_time(time_ns: int) -> str:
    """In UTC, to the millisecond; sorts as a text as it does as a time."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}{time_ns // 1_000_000 % 1000:03}Z"
