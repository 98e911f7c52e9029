"""A profiled service whose profiles go to files, in a directory that processes share, fill and die in."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from profile_files import functions, pids, profiles, wait_until, written_to
from target_process import Target


def test_each_period_is_a_file_and_parent_and_child_share_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    with Target("accounted_work.py", "forking", "1", env=written_to(directory)) as target:
        child, status = target.json("ledger")["child"]
        assert (status, target.finish()) == (0, 0), target.output
        assert pids(directory) == {target.pid, child}
        for pid in (target.pid, child):
            assert "__main__.compute" in functions(directory, pid)
    assert len(profiles(directory)) > 2
    assert all(name.startswith("shop-") and name.endswith(".pprof") for name in profiles(directory))
    assert len(list(directory.iterdir())) == len(profiles(directory))


def test_a_process_that_is_killed_leaves_whole_profiles_only(tmp_path: Path) -> None:
    with Target("accounted_work.py", "busy", "60", env=written_to(tmp_path)) as target:
        wait_until(lambda: len(list(tmp_path.glob("*.pprof"))) > 3)
        target.signal(signal.SIGKILL)
        assert target.finish() == -signal.SIGKILL
    assert len(profiles(tmp_path)) > 3


def test_partial_file_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    with Target("file_writer.py", "killed", str(tmp_path)) as target:
        assert target.finish() == -signal.SIGXFSZ, target.output
    (half,) = tmp_path.iterdir()
    assert (half.suffix, half.stat().st_size) == (".tmp", 10_000)
    a_minute_ago = time.time() - 60
    os.utime(half, (a_minute_ago, a_minute_ago))
    with Target("accounted_work.py", "busy", "0.5", env=written_to(tmp_path)) as target:
        assert target.finish() == 0, target.output
        assert pids(tmp_path) == {target.pid}
    assert not half.exists()


def test_full_disk_leaves_no_partial_file_and_takes_smaller_profiles(tmp_path: Path) -> None:
    with Target("file_writer.py", "refused", str(tmp_path)) as target:
        large, small = target.lines(2, "outcome ")
        assert target.finish() == 0, target.output
    assert f"profiles cannot be written to {tmp_path} (File too large)" in large
    assert small == '["delivered", ""]'
    assert len(profiles(tmp_path)) == len(list(tmp_path.iterdir())) == 1


_STOPPED = """
import sys, threading, time, splunk_profiler
assert splunk_profiler.start()
until = time.monotonic() + 0.5
while time.monotonic() < until:
    sum(range(1000))
splunk_profiler.stop(float(sys.argv[1]))
print("threads", [one.name for one in threading.enumerate() if one.name.startswith("splunk")], flush=True)
"""


@pytest.mark.parametrize("timeout", ["inf", "1e300"])
@pytest.mark.parametrize("exporter", ["process", "thread"])
def test_stop_without_an_end_delivers_all_and_leaves_no_thread(timeout: str, exporter: str, tmp_path: Path) -> None:
    env = {**written_to(tmp_path), "SPLUNK_PROFILER_EXPORTER": exporter}
    with Target(sys.executable, "-c", _STOPPED, timeout, env=env) as target:
        assert target.line("threads") == "[]", target.output
        assert target.finish() == 0, target.output
        assert "Error" not in target.output
        wait_until(lambda: pids(tmp_path) == {target.pid})


def test_a_service_whose_directory_cannot_be_made_works_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "profiles"
    with Target("accounted_work.py", "busy", "1", env=written_to(directory)) as target:
        assert target.json("ledger")
        assert target.finish() == 0, target.output
        said = target.final_output()
    assert said.count("profiling records are not delivered") == 1
    assert f"profiles cannot be written to {directory} (Not a directory); see SPLUNK_PROFILER_OUTPUT" in said


def test_first_export_after_the_end_of_the_main_thread_is_written(tmp_path: Path) -> None:
    env = {**written_to(tmp_path), "SPLUNK_PROFILER_EXPORT_INTERVAL": "600000", "SPLUNK_PROFILER_EXPORTER": "thread"}
    with Target("late_export.py", env=env) as target:
        assert target.finish() == 0, target.output
        assert "__main__.outlive_the_main_thread" in functions(tmp_path, target.pid), target.output
