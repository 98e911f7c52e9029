"""Tests of the collector's files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from permissions import mode

from splunk_profiler.cli.store import LineFile, Store, StoreError


@contextmanager
def opened(path: Path, *, sync: bool = False) -> Iterator[LineFile]:
    file = LineFile(path, sync=sync)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("sync", [False, True])
def test_values_are_lines_of_compact_json(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "x.jsonl"
    with opened(path, sync=sync) as file:
        file.append({"a": [1, "ü\n"]})
        file.append({})
        assert file.size == path.stat().st_size
    assert path.read_text("utf-8") == '{"a":[1,"ü\\n"]}\n{}\n'


def test_what_is_there_is_kept_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"old":1}\n', "utf-8")
    with opened(path) as file:
        file.append(2)
    assert path.read_text("utf-8") == '{"old":1}\n2\n'


@pytest.mark.parametrize("piece", ['{"half', '{"long":"' + "x" * 200_000])
def test_a_piece_of_a_line_that_a_killed_collector_left_is_overwritten(tmp_path: Path, piece: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"old":1}\n' + piece, "utf-8")
    with opened(path) as file:
        file.append(2)
    assert path.read_text("utf-8") == '{"old":1}\n2\n'


def test_a_last_line_that_is_whole_but_not_ended_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"old":1}', "utf-8")
    with opened(path) as file:
        file.append(2)
    assert path.read_text("utf-8") == '{"old":1}\n2\n'


def test_line_that_does_not_fit_leaves_nothing_and_shorter_ones_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with opened(path) as file:
        file.append("first")
        with files_no_larger_than(20):
            with pytest.raises(StoreError, match="cannot be written: File too large"):
                file.append("x" * 100)
            assert path.read_text("utf-8") == '"first"\n'
            file.append("short")
        file.append("last")
    assert path.read_text("utf-8") == '"first"\n"short"\n"last"\n'


def test_a_file_has_one_writer_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "x.jsonl"), pytest.raises(StoreError, match="another collector"):
        LineFile(tmp_path / "x.jsonl", sync=False)
    with opened(tmp_path / "x.jsonl") as file:
        file.append(1)


def test_store_makes_the_directory_with_a_file_for_logs_and_one_for_traces(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    store.append({}, is_traces=False)
    assert store.size == 3
    store.close()
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["logs.jsonl", "traces.jsonl"]


def test_a_file_of_another_user_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.touch(0o666)
    path.chmod(0o666)

    def fchmod(_descriptor: int, _mode: int) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", fchmod)  # the system's answer to a user who is not the owner
    with pytest.raises(StoreError, match="belongs to another user"):
        LineFile(path, sync=False)
    monkeypatch.undo()
    with opened(path):
        assert mode(path) == 0o600


def test_a_store_that_cannot_be_opened_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"traces.jsonl cannot be written: Is a directory"):
        Store(tmp_path)
    (tmp_path / "traces.jsonl").rmdir()
    Store(tmp_path).close()
