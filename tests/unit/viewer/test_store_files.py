"""Tests of a store as a file: who may open it, and whose it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sample_stores import put, rows, writing
from saved_samples import sample_line

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
