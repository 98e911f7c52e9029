"""Tests of a store as a file: who may open it, and whose it is."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from permissions import NOBODY, find_open_to_others, mode
from sample_stores import NOON_NS, put, rows, writing
from saved_samples import sample_line, span_line

from splunk_profiler.viewer import store_writer
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, Selection
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.store_writer import StoreWriter

COUNT_REQUESTS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(*connection.execute("SELECT count(*) FROM requests").fetchone())
connection.close()
"""


def test_a_store_can_be_opened_by_other_programs_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for count in (1, 2, 3):
            put(writer, sample_line())
            counted = subprocess.run([sys.executable, "-c", COUNT_REQUESTS, path], capture_output=True, check=True)
            assert int(counted.stdout) == count
    assert rows(path, "requests") == 3


@contextmanager
def nothing_can_be_made_in(directory: Path) -> Iterator[None]:
    """Take the right to write to a directory for the block, root's too, as if it were mounted read-only."""
    directory.chmod(0o555)
    before, _, _ = os.getresuid()
    os.setresuid(before or NOBODY, -1, -1)  # rights are asked of the real user
    try:
        yield
    finally:
        os.setresuid(before, -1, -1)
        directory.chmod(0o755)


def test_a_store_where_nothing_can_be_made_shows_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line())
    with nothing_can_be_made_in(tmp_path):
        store = LiveStore(path)
    for count in (2, 3):
        with writing(path) as writer:
            put(writer, sample_line())
            for _ in range(2):
                with nothing_can_be_made_in(tmp_path):
                    store.refresh()
                assert store.recording.count() == count
    version = store.version
    with writing(path) as writer:
        put(writer, sample_line())
    for _ in range(2):
        with nothing_can_be_made_in(tmp_path):
            store.refresh()
        assert (store.recording.count(), store.version) == (4, version + 1)


@pytest.mark.parametrize("statement", ["CREATE TABLE mine (id INTEGER)", ""])
def test_a_file_of_something_else_keeps_its_permissions(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "app.db"
    if not statement:
        path.write_text("no database")
    else:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
    path.chmod(0o660)
    before = path.read_bytes()
    with pytest.raises(SourceError):
        StoreWriter(path)
    assert (mode(path), path.read_bytes()) == (0o660, before)


def test_a_store_that_others_could_read_is_private_once_it_is_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "store.db"
    for _ in range(2):
        with writing(path) as writer:
            put(writer, sample_line())
            assert find_open_to_others(tmp_path) == []
        path.chmod(0o644)
    assert rows(path, "requests") == 2


def test_requests_need_not_wait_while_old_parts_are_read_and_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    called = []

    def while_others_can_write(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            called.append(function)
            with closing(sqlite3.connect(path, timeout=0)) as other:
                other.execute("BEGIN IMMEDIATE")
            return function(*arguments)

        return call

    slow = [getattr(store_writer, name) for name in ("unpack", "joined", "read_some_spans", "by_minute", "pack")]
    with writing(path) as writer:
        for place, span in enumerate("123"):
            put(writer, sample_line(time_ns=NOON_NS + place, span=16 * span))
            writer.run_maintenance(NOON_NS, hold_ns=0)
        put(writer, span_line("GET /", 16 * "2", times_ns=(NOON_NS, NOON_NS + 1)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        for function in slow:
            monkeypatch.setattr(store_writer, function.__name__, while_others_can_write(function))
        for now_ns, step in ((NOON_NS + 2 * HOUR_NS, slow[:3] + slow[4:]), (NOON_NS + 2 * DAY_NS, slow)):
            called.clear()
            writer.run_maintenance(now_ns)
            assert set(called) == set(step)
    spans = LiveStore(path).recording.facet_values(Selection("samples"))["span"]
    assert dict(spans.values) == {"(span not received)": 2, "GET /": 1}
