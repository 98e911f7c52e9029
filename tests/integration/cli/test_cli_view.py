"""``splunk-profiler view``: which files it takes, and with which options."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click import UsageError
from command_line import splunk_profiler
from profile_factory import small_profile
from saved_samples import sample_line

from splunk_profiler.cli.view import open_files, view
from splunk_profiler.formats.pprof import encode_whole
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.store_writer import StoreWriter


def damaged_store(path: Path) -> None:
    StoreWriter(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(b"\xff" * 16 + path.read_bytes()[16:])


@pytest.mark.parametrize(
    "make",
    [
        damaged_store,
        lambda path: path.touch(),
        lambda path: path.write_bytes(bytes(range(128, 256)) * 9),
        lambda path: path.write_bytes(gzip.compress(sample_line().encode())),
        lambda path: path.write_text("no samples\n", "utf-8"),
    ],
    ids=["store", "empty", "random", "packed", "text"],
)
def test_a_file_of_no_known_kind_is_an_error(tmp_path: Path, make: Callable[[Path], object]) -> None:
    file = tmp_path / "week.db"
    make(file)
    with pytest.raises(SourceError, match=r"week\.db is neither a store nor a kept stream.*\.pb\.gz"):
        open_files(file)


def test_the_error_names_the_file_and_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "zero.db").touch()
    for option in ("--html", "--store"):
        ended = splunk_profiler("view", tmp_path / "zero.db", option, tmp_path / "target")
        assert (ended.returncode, ended.stdout) == (1, "")
        assert f"error: {tmp_path / 'zero.db'} is neither a store" in ended.stderr
        assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("option", ["--html", "--store"])
def test_what_is_missing_in_what_was_saved_is_said(tmp_path: Path, option: str) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line() + "not JSON\n" * 1200, "utf-8")
    ended = splunk_profiler("view", tmp_path, option, tmp_path / "target")
    assert (ended.returncode, ended.stdout) == (0, f"saved in {tmp_path / 'target'}\n")
    assert ended.stderr == "1,200 records could not be read.\n"


def test_a_store_keeps_how_much_of_its_sources_was_not_read(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line() + "not JSON\n" * 7, "utf-8")
    splunk_profiler("view", tmp_path, "--store", tmp_path / "store.db")
    splunk_profiler("view", tmp_path / "logs.jsonl", "--store", tmp_path / "store.db")
    ended = splunk_profiler("view", tmp_path / "store.db", "--html", tmp_path / "page.html")
    assert (ended.returncode, ended.stderr) == (0, "14 records could not be read.\n")


@pytest.mark.parametrize(
    ("name", "content", "is_shown"),
    [
        ("logs.json", b"", False),
        ("logs.jsonl", b"", False),
        ("logs.json.1", sample_line().encode(), True),
        ("pprof.app.cpu.001.pb.gz", encode_whole(small_profile()).gzipped, True),
        ("by_hand.pprof", encode_whole(small_profile()).gzipped, True),
    ],
)
def test_a_file_of_a_known_kind_is_shown(tmp_path: Path, name: str, content: bytes, is_shown: bool) -> None:
    (tmp_path / name).write_bytes(content)
    shown = open_files(tmp_path / name)
    shown.refresh()
    assert (shown.recording.count() > 0, shown.unread) == (is_shown, 0)


def test_profiles_of_both_names_in_a_directory_are_shown(tmp_path: Path) -> None:
    for name in ("one.pprof", "other.pb.gz", "packed.gz"):
        (tmp_path / name).write_bytes(encode_whole(small_profile()).gzipped)
    shown = open_files(tmp_path)
    shown.refresh()
    assert {facets.service for facets in shown.recording.facets} == {"one", "other"}


@pytest.mark.parametrize(
    ("option", "value"),
    [("--service", "nope"), ("--last-hours", "1"), ("--until", "2026-11-20T14:30"), ("--table", "otel_logs")],
)
@pytest.mark.parametrize("target", ["--html", "--store"])
def test_an_option_of_clickhouse_alone_is_refused(tmp_path: Path, option: str, value: str, target: str) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    arguments = [str(tmp_path), option, value, target, str(tmp_path / "target")]
    with pytest.raises(UsageError, match=f"^{option} is for ClickHouse only, and .* is not one of its databases$"):
        view.main(arguments, standalone_mode=False)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", ""), "^--host needs an address$"),
        (("--html", "page.html", "--store", "store.db"), "^--html and --store cannot be used together$"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    with pytest.raises(UsageError, match=said):
        view.main(["logs.jsonl", *options], standalone_mode=False)
    assert [file.name for file in tmp_path.iterdir()] == ["logs.jsonl"]
