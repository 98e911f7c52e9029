"""Tests of the thread that keeps the collector's store small."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

from sample_stores import put, rows, writing
from saved_samples import sample_line

from splunk_profiler.cli.store_file import StoreFile
from splunk_profiler.viewer.store_writer import Limits

DEADLINE_S = 60


def rename_unit(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path, timeout=DEADLINE_S)) as connection, connection:
        connection.execute("DELETE FROM units")
        connection.execute("INSERT INTO units VALUES (?, ?)", (name, json.dumps("count")))


def test_upkeep_goes_on_after_whatever_error_and_says_each_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(), received_ns=0)
    rename_unit(path, 100_000 * "[")  # is no `ValueError`, which a damaged store is known by
    problems: SimpleQueue[str] = SimpleQueue()
    store = StoreFile(path, Limits(), problems.put, sync=False, interval_s=0.01)
    try:
        assert problems.get(timeout=DEADLINE_S).startswith(f"{path} is not kept small: RecursionError(")
        rename_unit(path, "{")
        assert problems.get(timeout=DEADLINE_S).startswith(f"{path} is damaged (")
        assert rows(path, "requests") == 1
    finally:
        store.close()
    assert problems.empty()
