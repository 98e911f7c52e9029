"""A service whose package is removed or damaged under it: what becomes of an exporter that dies then, and the log."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from exporter_processes import find_exporters, wait_for_end
from receiver_process import Receiver
from target_process import TESTS, Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from package_copy import copy_package

_REPORT_NS = 2_000_000_000  # until an exporter has reported: one that has not is given up sooner
_AGAIN = "the exporter process ended and was started again"
_FAILED = "the exporter process cannot be reached or started: "


@contextmanager
def _service_of_copy(folder: Path) -> Iterator[tuple[Receiver, Target, Path]]:
    """Run a service with a copy of the package, until records come; then its exporter is killed by `_kill_exporter`."""
    copy = copy_package(folder)
    path = os.pathsep.join([str(folder), *(str(TESTS / name) for name in ("targets", "support")), *sys.path])
    command = [sys.executable, "-S", str(TESTS / "targets" / "exported_service.py")]  # `site` would find the original
    env = {"PYTHONPATH": path}
    with Receiver() as receiver, Target(*command, env=profiling_settings(receiver.url, 10, **env)) as target:
        first_ns = receiver.records(1)[0]["time_ns"]
        receiver.record(lambda record: record["time_ns"] > first_ns + _REPORT_NS)
        yield receiver, target, copy
        target.tell("stop")
        assert target.finish() == 0, target.output


def _kill_exporter(target: Target) -> None:
    (exporter,) = find_exporters(target.pid)
    os.kill(exporter, signal.SIGKILL)
    wait_for_end(exporter)


def test_exporter_of_removed_package_is_started_once_that_is_back(tmp_path: Path) -> None:
    with _service_of_copy(tmp_path) as (receiver, target, copy):
        away = copy.rename(tmp_path / "away")
        _kill_exporter(target)
        line = target.line(_FAILED)
        assert str(copy) in line
        assert "no records are exported" in line
        assert not target.has_line(_AGAIN)
        away.rename(copy)
        target.line(_AGAIN)
        restarted_ns = time.time_ns()
        receiver.record(lambda record: record["time_ns"] > restarted_ns)
        assert target.output.count(_FAILED) == 1


def test_exporter_that_ends_as_it_starts_was_not_started_again(tmp_path: Path) -> None:
    with _service_of_copy(tmp_path) as (_, target, copy):
        (copy / "exporter_process" / "server.py").unlink()
        _kill_exporter(target)
        assert "ends before it answers" in target.line(_FAILED)
        assert not target.has_line(_AGAIN)
