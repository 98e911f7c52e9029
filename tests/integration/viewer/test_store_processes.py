"""Stores of real collectors: filled over OTLP, killed, full, shared and shown."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import (
    DEADLINE_S,
    ROOT,
    TARGETS,
    Collector,
    clean_environment,
    run_collector,
    run_sender,
    splunk_profiler,
)
from permissions import find_open_to_others
from saved_samples import sample_line

from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, Selection

SAMPLES = Selection("samples")


@contextmanager
def collector_with_store(path: Path) -> Iterator[Collector]:
    with run_collector(path.parent / "unused", "--store", str(path)) as collector:
        yield collector


def requests(path: Path) -> int:
    """Return how many requests wait in a store."""
    with sqlite3.connect(path) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM requests")
    connection.close()
    return int(count)


def test_a_store_that_a_collector_fills_is_read_and_saved_as_a_page(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with collector_with_store(path) as collector:
        store = LiveStore(path)
        assert not store.recording.values
        with run_sender(collector.address) as sender:
            sent = sender.do("everything")
        store.refresh()
        assert store.recording.weights(SAMPLES).sum() == 2
        assert dict(store.recording.facet_values(SAMPLES)["endpoint"].values) == {"GET /": 2}
        assert {span.name for span in store.spans_of(sent["trace"])} == {"GET /"}
        second = splunk_profiler("collect", "--port", "0", "--store", path)
        assert (second.returncode, second.stdout) == (1, "")
        assert "store.db is being written by another process; name another file" in second.stderr
        output, errors = collector.end()
    assert errors == ""
    assert f"saved in {path}; see it: splunk-profiler view {path}" in output
    assert find_open_to_others(tmp_path) == []
    assert not (tmp_path / "unused").exists()
    page = tmp_path / "page.html"
    assert splunk_profiler("view", path, "--html", page).returncode == 0
    assert "a.b" in page.read_text("utf-8")


def test_acknowledged_requests_survive_sigkill_of_the_collector(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for run in (1, 2):
        with collector_with_store(path) as collector, run_sender(collector.address) as sender:
            assert [sender.do("numbered", number, 100) for number in range(10)] == ["OK"] * 10
            collector.process.send_signal(signal.SIGKILL)
            collector.process.wait(DEADLINE_S)
        assert requests(path) == 10 * run


def test_a_full_disk_refuses_requests_until_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with collector_with_store(path) as collector:
        with run_sender(collector.address) as sender:
            assert sender.do("numbered", 1, 100) == "OK"
            _, hard = resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
            assert sender.do("numbered", 2, 100) == "UNAVAILABLE"
            resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
            assert sender.do("numbered", 3, 100) == "OK"
        output, errors = collector.end()
    assert "1 not saved" in output
    assert "store.db cannot be used" in errors
    assert "requests are being saved again" in errors
    assert requests(path) == 2


def test_files_with_a_time_that_is_to_come_are_stored_without_it(tmp_path: Path) -> None:
    ahead_ns = time.time_ns() + 2 * DAY_NS
    (tmp_path / "logs.jsonl").write_text(sample_line() + sample_line(time_ns=ahead_ns), "utf-8")
    saved = splunk_profiler("view", tmp_path / "logs.jsonl", "--store", tmp_path / "store.db")
    assert (saved.returncode, saved.stderr) == (0, "1 record could not be read.\n")
    assert LiveStore(tmp_path / "store.db").recording.weights(SAMPLES).sum() == 1


def test_a_store_that_cannot_be_made_is_an_error_before_serving(tmp_path: Path) -> None:
    refused = splunk_profiler("collect", "--port", "0", "--store", tmp_path / "missing" / "store.db")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "cannot be written: No such file or directory" in refused.stderr


def test_no_acknowledged_sample_is_lost_or_doubled_by_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    chosen = random.Random(11)
    acknowledged = 0
    for _ in range(6):
        first = acknowledged // 7 + 1
        before = LiveStore(path).recording.weights(SAMPLES).sum() if path.exists() else 0
        with subprocess.Popen(
            [sys.executable, TARGETS / "store_keeper.py", path, str(first)],
            env=clean_environment({"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "support"), *sys.path])}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as keeper:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.write("\n" * 100)
            keeper.stdin.flush()
            wanted = chosen.randrange(1, 60)
            numbers = [int(keeper.stdout.readline()) for _ in range(wanted)]
            keeper.kill()
            numbers += [int(line) for line in keeper.stdout.read().splitlines()]
        recording = LiveStore(path).recording
        added = recording.weights(SAMPLES).sum() - before
        assert added in {len(numbers), len(numbers) + 1}  # the last one may not have been told
        acknowledged = numbers[-1]
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
    assert acknowledged > 100
