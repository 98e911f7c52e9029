"""Celery's prefork pool: the children that run tasks and the process that feeds them all go on sending."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import exporters_with_variable, wait_for_end

_CHILDREN = 2
_TASKS = 30
_SEND = "import celery_service as c\nfor n in range({}): c.app.send_task('serve', [n % 8])"


@pytest.mark.skipif(find_spec("celery") is None, reason="celery is not there for this interpreter")
def test_every_celery_child_sends_under_its_own_id_by_one_exporter(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    folder = {"CELERY_FOLDER": str(tmp_path)}
    words = [sys.executable, "-m", "celery", "--app", "celery_service", "worker", "--pool", "prefork"]
    words += ["--concurrency", str(_CHILDREN), "--without-gossip", "--without-mingle", "--without-heartbeat"]
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url, 10), **folder, "C_FORCE_ROOT": "1"}
        with Target(*words, env=env, cwd=tmp_path) as worker:
            with Target(sys.executable, "-c", _SEND.format(_TASKS), env=folder, cwd=tmp_path) as sender:
                assert sender.finish() == 0, sender.output
            served = [json.loads(line) for line in worker.lines(_TASKS, "served")]
            spans = {(task["pid"], task["trace_id"], task["span_id"]) for task in served}
            pids = {task["pid"] for task in served}
            assert len(pids) == _CHILDREN
            for pid in pids:
                record = receiver.record(
                    lambda r, pid=pid: r["resource"]["process.pid"] == pid and ".work_in_span_" in r["body"]  # type: ignore[misc]
                )
                assert record["resource"]["set.in.code"] == "yes"
            now = time.time_ns()
            receiver.record(lambda r: r["time_ns"] > now and r["resource"]["process.pid"] == worker.pid)
            (exporter,) = exporters_with_variable(f"={receiver.url}")
            worker.signal(signal.SIGTERM)
            assert worker.finish() == 0, worker.output
        wait_for_end(exporter)
        marked = receiver.records(1, lambda record: ".work_in_span_" in record["body"])
        for record in marked:
            assert (record["resource"]["process.pid"], record["trace_id"], record["span_id"]) in spans, record
        assert os.getpid() not in pids
