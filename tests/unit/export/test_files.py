"""Profiles in files: whole files, unique names and limits."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from opentelemetry.sdk.resources import Resource
from permissions import find_open_to_others, umask_cleared
from profile_factory import large_profile, message, small_profile
from profile_schema import decode

from splunk_profiler.code_origin.classifier import CodeClassifier
from splunk_profiler.export.files import DirectorySink
from splunk_profiler.formats.pprof import MAX_BODY_BYTES
from splunk_profiler.model import DataType
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, InstrumentationSource, Profile

BATCH = Batch((small_profile(),))
ABANDONED = ".{}-20260528T202640000Z-1-0123abcd-1.pprof.tmp"


def sink_in(
    directory: Path, service: str | None = "shop", *, max_files: int = 100, max_bytes: int = 1 << 30
) -> DirectorySink:
    return DirectorySink(
        directory, lambda: Resource({"service.name": service}), max_files=max_files, max_bytes=max_bytes
    )


def at(second: int) -> Batch[Profile]:
    """Return a batch of one profile that begins `second` seconds after the first."""
    return Batch((replace(small_profile(), time_ns=small_profile().time_ns + second * 1_000_000_000),))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_profile_is_a_file_that_holds_all_of_it_however_large(tmp_path: Path) -> None:
    sink, profile = sink_in(tmp_path), large_profile(13_000)
    assert sink.export(Batch((profile,))) == ExportResult(ExportStatus.DELIVERED)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size * 4 / 3 > MAX_BODY_BYTES, "no log record could hold it"
    assert gzip.decompress(path.read_bytes()) == message(profile, CodeClassifier().classify)


def test_a_profile_says_in_a_comment_which_process_it_is_of(tmp_path: Path) -> None:
    identity = RuntimeId.new()
    sink = DirectorySink(
        tmp_path, lambda: ResourceTagger(identity, on_spans=True).resource(Resource({"service.name": "shop"}))
    )
    sink.export(Batch((replace(small_profile(), dropped_labels=1),)))
    (path,) = tmp_path.iterdir()
    profile = decode(gzip.decompress(path.read_bytes()))
    comments = [profile.string_table[index] for index in profile.comment]
    assert comments[0] == f"runtime-id={identity.value}"
    assert len(comments) == 2, "what is said of lost labels stays"


def test_the_name_says_whose_when_and_of_which_run(tmp_path: Path) -> None:
    sinks = [sink_in(tmp_path) for _ in range(2)]  # like a process with the same id in another container
    for sink in (*sinks, *sinks):
        sink.export(BATCH)
    found = [
        re.fullmatch(r"shop-20260528T202640000Z-(\d+)-([0-9a-f]{8})-([12])\.pprof", name) for name in names(tmp_path)
    ]
    assert len({match.groups() for match in found if match}) == 4
    assert {int(match[1]) for match in found if match} == {os.getpid()}


def test_snapshot_profiles_have_their_own_file_names_and_are_rotated(tmp_path: Path) -> None:
    closely = replace(small_profile(), source=InstrumentationSource.SNAPSHOT)
    sink_in(tmp_path).export(Batch((closely,)))
    (name,) = names(tmp_path)
    assert name.endswith("-1-snapshot.pprof")
    sink_in(tmp_path, max_files=1).export(at(10))
    (left,) = names(tmp_path)
    assert left != name


@pytest.mark.parametrize(
    ("source", "ending"),
    [
        (InstrumentationSource.CONTINUOUS, "-1-allocation.pprof"),
        (InstrumentationSource.SNAPSHOT, "-1-allocation-snapshot.pprof"),
    ],
)
def test_other_data_types_have_their_own_file_names_and_are_rotated(
    tmp_path: Path, source: InstrumentationSource, ending: str
) -> None:
    other = replace(small_profile(), data_type=DataType.ALLOCATION, source=source)
    sink_in(tmp_path).export(Batch((other,)))
    (name,) = names(tmp_path)
    assert name.endswith(ending)
    sink_in(tmp_path, max_files=1).export(at(10))
    (left,) = names(tmp_path)
    assert left != name


@pytest.mark.parametrize(
    ("service", "start"),
    [
        ("../../etc/x y", "_.._etc_x_y-2026"),
        ("", "unknown-2026"),
        ("...", "unknown-2026"),
        ("größe", "gr__e-2026"),
        (None, "unknown-2026"),
    ],
)
def test_whatever_the_service_is_called_the_file_is_in_the_directory(
    tmp_path: Path, service: str | None, start: str
) -> None:
    sink_in(tmp_path, service).export(BATCH)
    assert [name[: len(start)] for name in names(tmp_path)] == [start]


def test_a_missing_directory_is_made_also_when_it_goes_later(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    sink = sink_in(directory)
    for _ in range(2):
        assert sink.export(BATCH).export_status is ExportStatus.DELIVERED
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def test_files_and_directories_that_are_made_are_their_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with umask_cleared():
        sink_in(tmp_path / "a" / "b").export(BATCH)
    assert find_open_to_others(tmp_path) == [tmp_path], "what is there keeps its permissions"
    assert len(names(tmp_path / "a" / "b")) == 1


def test_unwritable_directory_is_named_and_the_profile_is_retried(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory, reason in ((tmp_path / "file" / "x", "Not a directory"), (tmp_path / "file", "File exists")):
        outcome = sink_in(directory).export(BATCH)
        assert outcome.export_status is ExportStatus.RETRY
        assert f"profiles cannot be written to {directory} ({reason})" in outcome.detail
        assert "SPLUNK_PROFILER_OUTPUT" in outcome.detail


def test_the_oldest_files_of_the_service_go_when_there_are_too_many(tmp_path: Path) -> None:
    for run in range(3):  # each sink scans once, after its first file
        sink = sink_in(tmp_path, max_files=20)
        for number in range(10):
            sink.export(at(10 * run + number))
    kept = names(tmp_path)
    assert len(kept) == 29
    sink_in(tmp_path, max_files=20).export(at(30))
    assert names(tmp_path)[:19] == kept[10:]
    assert len(names(tmp_path)) == 20


def test_a_run_that_lasts_looks_again_and_again(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, max_files=5)
    for number in range(100):
        sink.export(at(number))
    assert 5 <= len(names(tmp_path)) < 5 + 16


@pytest.mark.parametrize("wait", [DirectorySink.interrupt, DirectorySink.shutdown])
def test_waiting_for_an_export_does_not_include_rotation(tmp_path: Path, wait: Callable[[DirectorySink], None]) -> None:
    for number in range(5):
        sink_in(tmp_path).export(at(number))

    def resource() -> Resource:
        wait(sink)
        return Resource({"service.name": "shop"})

    sink = DirectorySink(tmp_path, resource, max_files=1)
    assert sink.export(at(5)) == ExportResult(ExportStatus.DELIVERED)
    assert len(names(tmp_path)) == 6


def test_a_process_that_ends_with_its_only_profile_removes_old_ones(tmp_path: Path) -> None:
    for number in range(5):
        sink = sink_in(tmp_path, max_files=1)
        sink.set_shutdown_deadline(1)
        sink.export(at(number))
    assert len(names(tmp_path)) == 1


def test_unlistable_directory_takes_profiles_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def scandir(_path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", scandir)
    sink = sink_in(tmp_path)
    assert {sink.export(at(number)).export_status for number in range(40)} == {ExportStatus.DELIVERED}
    monkeypatch.undo()
    assert len(names(tmp_path)) == 40
    (record,) = caplog.records
    assert f"old profiles in {tmp_path} are not removed: it cannot be listed (Permission denied)" in record.message


def test_the_oldest_files_go_when_they_take_too_much_room(tmp_path: Path) -> None:
    sink_in(tmp_path).export(at(0))
    size = next(tmp_path.iterdir()).stat().st_size
    for number in range(1, 10):
        sink_in(tmp_path, max_bytes=4 * size + size // 2).export(at(number))
    assert len(names(tmp_path)) == 4
    assert names(tmp_path)[0].startswith("shop-20260528T202646")


class Disk:
    """A directory that holds at most `size` bytes."""

    def __init__(self, directory: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory, self.size = directory, size
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, content: memoryview) -> int:
        """Write as much as fits."""
        room = self.size - sum(path.stat().st_size for path in self._directory.iterdir())
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, content[:room])


def test_on_a_disk_that_its_profiles_have_filled_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_in(tmp_path)
    sink.export(at(0))
    size = next(tmp_path.iterdir()).stat().st_size
    Disk(tmp_path, 4 * size + size // 2, monkeypatch)
    for number in range(1, 10):
        assert sink.export(at(number)) == ExportResult(ExportStatus.DELIVERED)
    assert [name[5:24] for name in names(tmp_path)] == [f"20260528T20264{number}000Z" for number in range(6, 10)]


def test_disk_filled_by_others_costs_no_more_files_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_in(tmp_path)
    for number in range(9):
        sink.export(at(number))
    disk, next_one = Disk(tmp_path, 0, monkeypatch), at(9)
    for _ in range(5):
        outcome = sink.export(next_one)
        assert outcome.export_status is ExportStatus.RETRY
        assert "No space left on device" in outcome.detail
    kept = len(names(tmp_path))
    assert kept in (7, 8)  # their sizes differ by some bytes
    disk.size = 1 << 30
    assert sink.export(next_one).export_status is ExportStatus.DELIVERED
    assert len(names(tmp_path)) == kept + 1


def test_no_profile_goes_for_one_that_they_all_could_not_make_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_in(tmp_path)
    sink.export(at(0))
    Disk(tmp_path, 0, monkeypatch)
    assert sink.export(Batch((large_profile(500),))).export_status is ExportStatus.RETRY
    assert len(names(tmp_path)) == 1


def test_disk_that_reports_no_room_at_close_leaves_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_close = os.close

    def close(descriptor: int) -> None:
        really_close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    sink = sink_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close)
        assert sink.export(BATCH).export_status is ExportStatus.RETRY
    assert names(tmp_path) == []


def test_files_of_a_clock_that_was_far_ahead_go_first(tmp_path: Path) -> None:
    now = int(time.time()) - small_profile().time_ns // 1_000_000_000
    for day in range(1, 6):
        sink_in(tmp_path).export(at(now + day * 86_400))
    before = set(names(tmp_path))
    sink = sink_in(tmp_path, max_files=18)
    for number in range(17):
        sink.export(at(now - number))
    assert len(set(names(tmp_path)) - before) == 17


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others = [
        "shop.pprof",
        "readme",
        ".hidden",
        "shop-2-20260528T202640000Z-1-0123abcd-1.pprof",
        ABANDONED.format("db"),
    ]
    for name in others:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    sink_in(tmp_path, max_files=1).export(BATCH)
    assert set(others) < set(names(tmp_path))


def test_what_a_dead_process_has_left_half_written_is_removed(tmp_path: Path) -> None:
    abandoned = tmp_path / ABANDONED.format("shop")
    for seconds in (-60, 60):  # the second one: the clock was set back since
        abandoned.write_bytes(b"half")
        os.utime(abandoned, (time.time() + seconds,) * 2)
        sink_in(tmp_path).export(BATCH)
        assert not abandoned.exists()
    assert len(names(tmp_path)) == 2


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    written, new = (
        tmp_path / ABANDONED.format("shop"),
        tmp_path / ABANDONED.format("shop").replace("-1.pprof", "-2.pprof"),
    )
    new.touch()  # not locked yet
    with written.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(written, (0, 0))
        sink_in(tmp_path).export(BATCH)
        assert written.exists()
        assert new.exists()


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.touch()
    link = tmp_path / ABANDONED.format("shop")
    link.symlink_to(target)
    outcome = sink_in(tmp_path).export(BATCH)
    assert target.exists()
    assert outcome.export_status is ExportStatus.DELIVERED


def test_a_sink_that_is_shut_down_writes_nothing(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.shutdown()
    assert sink.export(BATCH).export_status is ExportStatus.RETRY
    assert names(tmp_path) == []
