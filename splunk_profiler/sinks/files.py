"""Writes each profile to a file of its own in a directory that many processes may share, and keeps that bounded.

`export` runs on the exporting thread, the rest on any. A profile is written under a name that begins with a dot and
then renamed, so that whoever looks sees whole profiles only. The file is locked while it is written: a temporary one
that is not locked belongs to a process that is gone, however it ended and in whichever container it ran. Nothing is
synced to the disk: what is written outlives the process, not a crash of the machine, and nobody waits for the disk.

What is kept is bounded for each service, whichever of its processes wrote it: a service is restarted again and again,
and its workers are many.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from splunk_profiler.formats import pprof
from splunk_profiler.model import Batch, DataType, Delivery, Outcome, Profile, Source
from splunk_profiler.provenance import Provenance
from splunk_profiler.threads import let_others_run, real_lock

if TYPE_CHECKING:
    from splunk_profiler.sinks.encoding import Resource  # it loads OpenTelemetry's messages

MOST_FILES = 10_000
MOST_BYTES = 512 << 20
_LOOK_AFTER = 16  # files of ours between two looks at how much there is
_UNTOUCHED_S = 2.0  # a file is made before it is locked
_ABANDONED_S = 3600.0  # where the file system knows no locks
_AHEAD_NS = 3600 * 1_000_000_000
_LONGEST_NAME = 80
_KINDS = "|".join(each.value for each in (*DataType, *Source))
_NAMED = rf"{{}}-[0-9]{{{{8}}}}T[0-9]{{{{9}}}}Z-[0-9]+-[0-9a-f]{{{{8}}}}-[0-9]+(?:-(?:{_KINDS}))*\.pprof"


class ProfileFiles:
    """Files in a directory.

    Args:
        directory: where; made when it is missing.
        resource: the resource of the process, for the name of the service and the process's id.
        provenance: whose code is in which file.
        most_files, most_bytes: how much of the service's is kept, about; the oldest go first.
    """

    def __init__(
        self,
        directory: Path,
        resource: Callable[[], Resource],
        provenance: Provenance | None = None,
        *,
        most_files: int = MOST_FILES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._directory = directory
        self._resource = resource
        self._provenance = provenance or Provenance()
        self._most_files, self._most_bytes = most_files, most_bytes
        self._run = os.urandom(4).hex()  # containers that share a directory have processes of the same id
        self._written = 0
        self._closed = False
        self._lock = real_lock()

    def export(self, batch: Batch[Profile]) -> Outcome:
        """See `Sink.export`. A profile is in the directory whole or not at all."""
        with self._lock:
            if self._closed:
                return Outcome(Delivery.RETRY, "the sink is closed")
            try:
                for profile in batch.records:
                    self._keep(profile)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                text = f"profiles cannot be written to {self._directory} ({reason}); see SPLUNK_PROFILER_OUTPUT"
                return Outcome(Delivery.RETRY, text)
            except Exception as error:
                return Outcome(Delivery.REJECTED, f"the profile cannot be encoded: {type(error).__name__}: {error}")
            return Outcome(Delivery.DELIVERED)

    def hurry(self, timeout_s: float) -> None:
        """See `Sink.hurry`: a write to a file cannot be made faster."""

    def interrupt(self) -> None:
        """See `Sink.interrupt`: nor be ended early."""

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        self._closed = True

    def _keep(self, profile: Profile) -> None:
        origin_of = self._provenance.up_to_date(let_others_run)
        content = pprof.whole(profile, pause=let_others_run, origin_of=origin_of).gzipped
        self._directory.mkdir(parents=True, exist_ok=True)
        service, pid = _described(self._resource())
        if self._written % _LOOK_AFTER == 0:
            self._make_room(service, len(content))
        self._written += 1
        kind = "" if profile.data_type is DataType.CPU else f"-{profile.data_type.value}"
        kind += "-snapshot" if profile.source is Source.SNAPSHOT else ""
        name = f"{service}-{_time(profile.time_ns)}-{pid}-{self._run}-{self._written}{kind}.pprof"
        with _temporary(self._directory / f".{name}.tmp") as (path, descriptor):
            rest = memoryview(content)
            while rest:  # a full disk takes a part before it refuses
                rest = rest[os.write(descriptor, rest) :]
            path.rename(self._directory / name)

    def _make_room(self, service: str, more_bytes: int) -> None:
        """Remove what the dead have left half-written, and the oldest profiles until there is room."""
        named = _NAMED.format(re.escape(service))
        ours, temporary = re.compile(named), re.compile(rf"\.{named}\.tmp")
        files: list[tuple[str, int]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):  # another process makes room too; or the file is somebody else's
                    if ours.fullmatch(entry.name):
                        files.append((entry.name, entry.stat(follow_symlinks=False).st_size))
                    elif temporary.fullmatch(entry.name):
                        _remove_abandoned(Path(entry.path))
        # Of one service, the name begins with the time. What a clock has named that was far ahead would stay for ever.
        soon = f"{service}-{_time(time.time_ns() + _AHEAD_NS)}"
        files.sort(key=lambda file: (file[0] < soon, file[0]), reverse=True)
        kept_bytes = more_bytes
        for kept, (name, size) in enumerate(files, 1):
            kept_bytes += size
            if kept >= self._most_files or kept_bytes > self._most_bytes:
                with suppress(OSError):
                    (self._directory / name).unlink()


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, int]]:
    """A new file at `path`, locked; removed if it is still there under that name in the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path, descriptor
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


def _remove_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        age_s = time.time() - os.fstat(descriptor).st_mtime
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


def _time(time_ns: int) -> str:
    """In UTC, to the millisecond; sorts as a text as it does as a time."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}{time_ns // 1_000_000 % 1000:03}Z"
