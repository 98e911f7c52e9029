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
from splunk_profiler.model import Batch, DataType, ExportResult, ExportStatus, Profile, Source
from splunk_profiler.system.guard import logger
from splunk_profiler.system.private_files import make_directory, open_private
from splunk_profiler.system.threads import let_others_run, real_lock

if TYPE_CHECKING:
    from splunk_profiler.export.otlp.sample_records import Resource  # it loads OpenTelemetry's messages

MOST_FILES = 10_000
MOST_BYTES = 512 << 20
_LOOK_AFTER = 16  # files of ours between two looks at how much there is, at least
_LOOK_AFTER_SHARE = 0.01  # of the files that there were
_LAST_LOOK_S = 0.3
_UNTOUCHED_S = 2.0  # a file is made before it is locked
_ABANDONED_S = 3600.0  # where the file system knows no locks
_AHEAD_NS = 3600 * 1_000_000_000  # clocks of machines that share a directory differ by less
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_NAME = 80
_KINDS = "|".join(each.value for each in (*DataType, *Source))
_NAMED = rf"{{}}-([0-9]{{{{8}}}}T[0-9]{{{{9}}}}Z)-[0-9]+-[0-9a-f]{{{{8}}}}-[0-9]+(?:-(?:{_KINDS}))*\.pprof"


class ProfileFiles:
    """Files in a directory.

    Args:
        directory: where; made when it is missing.
        resource: the resource of the process, for the name of the service and the process's ids.
        provenance: whose code is in which file.
        most_files, most_bytes: how much of the service's is kept, about; the oldest go first.
    """

    def __init__(
        self,
        directory: Path,
        resource: Callable[[], Resource],
        provenance: CodeClassifier | None = None,
        *,
        most_files: int = MOST_FILES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._directory = directory
        self._resource = resource
        self._provenance = provenance or CodeClassifier()
        self._most_files, self._most_bytes = most_files, most_bytes
        self._run = os.urandom(4).hex()  # containers that share a directory have processes of the same id
        self._written = 0
        self._next_look = 1  # the number of the file after which is looked
        self._waited_for = False
        self._longest_look_s = math.inf
        self._told = False
        self._refused: Profile | None = None  # the disk was full; room has been made for it
        self._closed = False
        self._lock = real_lock()

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """See `Sink.export`. A profile is in the directory whole or not at all."""
        with self._lock:
            if self._closed:
                return ExportResult(ExportStatus.RETRY, "the sink is closed")
            try:
                for profile in batch.records:
                    self._keep(profile)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                text = f"profiles cannot be written to {self._directory} ({reason}); see SPLUNK_PROFILER_OUTPUT"
                return ExportResult(ExportStatus.RETRY, text)
            except Exception as error:
                return ExportResult(
                    ExportStatus.REJECTED, f"the profile cannot be encoded: {type(error).__name__}: {error}"
                )
            finally:
                self._waited_for = False
            return ExportResult(ExportStatus.DELIVERED)

    def hurry(self, timeout_s: float) -> None:
        """See `Sink.hurry`: a write to a file cannot be made faster, but what is done besides can."""
        self._longest_look_s = min(timeout_s / 4, _LAST_LOOK_S)

    def interrupt(self) -> None:
        """See `Sink.interrupt`: nor be ended early, but what is done besides is."""
        self._waited_for = True

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        self._closed = True

    def _keep(self, profile: Profile) -> None:
        origin_of = self._provenance.up_to_date(let_others_run)
        said = _comments(self._resource())
        content = pprof.whole(profile, pause=let_others_run, origin_of=origin_of, comments=said).gzipped
        make_directory(self._directory)
        service, pid = _described(self._resource())
        self._written += 1
        kind = "" if profile.data_type is DataType.CPU else f"-{profile.data_type.value}"
        kind += "-snapshot" if profile.source is Source.SNAPSHOT else ""
        name = f"{service}-{_time(profile.time_ns)}-{pid}-{self._run}-{self._written}{kind}.pprof"
        try:
            self._write(name, content)
        except OSError as error:
            if error.errno not in _FULL or profile is self._refused:
                raise
            self._refused = profile
            self._make_room(service, len(content), full=True)
            self._write(name, content)
        self._refused = None
        if self._written >= self._next_look:
            self._look(service)

    def _look(self, service: str) -> None:
        try:
            found = self._make_room(service, 0)
        except OSError as error:
            if not self._told:
                self._told = True
                reason = error.strerror or type(error).__name__
                logger.warning("old profiles in %s are not removed: it cannot be listed (%s)", self._directory, reason)
            found = 0
        self._next_look = self._written + max(_LOOK_AFTER, int(found * _LOOK_AFTER_SHARE))

    def _write(self, name: str, content: bytes) -> None:
        with _temporary(self._directory / f".{name}.tmp") as (path, descriptor):
            rest = memoryview(content)
            while rest:  # a full disk takes a part before it refuses
                rest = rest[os.write(descriptor, rest) :]
            # Some file systems say only at the end that they had no room. The lock goes with the last descriptor.
            os.close(os.dup(descriptor))
            path.rename(self._directory / name)

    def _make_room(self, service: str, more_bytes: int, *, full: bool = False) -> int:
        """Remove what the dead have left half-written, and the oldest profiles until there is room.

        Ends early, with nothing removed, when somebody waits for it. Returns how many profiles there were.

        Args:
            service: whose.
            more_bytes: what is about to be written.
            full: the disk is; so many bytes go even if no more are there than are kept.
        """
        began_s = time.monotonic()
        named = _NAMED.format(re.escape(service))
        ours, temporary = re.compile(named), re.compile(rf"\.{named}\.tmp")
        latest = _time(time.time_ns() + _AHEAD_NS)
        files: list[tuple[bool, str, int]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if self._leaves_off(began_s):
                    return 0
                with suppress(OSError):  # another process makes room too; or the file is somebody else's
                    if match := ours.fullmatch(entry.name):
                        # From before the clock was set back, they would be the newest for as long as that was.
                        has_come = match[1] <= latest
                        files.append((has_come, entry.name, entry.stat(follow_symlinks=False).st_size))
                    elif temporary.fullmatch(entry.name):
                        _remove_abandoned(Path(entry.path))
        files.sort()  # of one service, the name begins with the time
        kept, kept_bytes = len(files) + bool(more_bytes), sum(size for _, _, size in files) + more_bytes
        most_bytes = self._most_bytes
        if full and kept_bytes >= 2 * more_bytes:  # else there is not so much that could go
            most_bytes = min(most_bytes, kept_bytes - more_bytes)
        for _, name, size in files:
            if kept <= self._most_files and kept_bytes <= most_bytes:
                break
            with suppress(OSError):
                (self._directory / name).unlink()
            kept, kept_bytes = kept - 1, kept_bytes - size
        return len(files)

    def _leaves_off(self, began_s: float) -> bool:
        """Whether to look no further. A process that ends takes its time too: some write one profile only."""
        return self._waited_for or self._closed or time.monotonic() - began_s > self._longest_look_s


def open_sink(opening: SinkContext) -> ProfileFiles:
    """The sink for a `Directory`."""
    place = opening.resolved.destination
    assert isinstance(place, Directory)
    return ProfileFiles(Path(place.path), opening.resource, opening.provenance)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, int]]:
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
            abandoned = age_s > _UNTOUCHED_S
        except BlockingIOError:  # somebody writes it
            abandoned = False
        except OSError:
            abandoned = age_s > _ABANDONED_S
        if abandoned:
            path.unlink()
    finally:
        os.close(descriptor)


def _described(resource: Resource) -> tuple[str, int]:
    """The service's name, as it may stand in that of a file, and the process's id."""
    name = str(resource.attributes.get("service.name", "")).lstrip(".")
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_LONGEST_NAME] or "unknown", os.getpid()


def _comments(resource: Resource) -> tuple[str, ...]:
    """A file has no resource around it: this is what leads from the spans of a process to its profiles."""
    runtime_id = resource.attributes.get("runtime-id", "")
    return (f"runtime-id={runtime_id}",) if runtime_id else ()


def _time(time_ns: int) -> str:
    """In UTC, to the millisecond; sorts as a text as it does as a time."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}{time_ns // 1_000_000 % 1000:03}Z"
