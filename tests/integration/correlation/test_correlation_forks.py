"""Forks of a service whose transactions wait: a child has a host profiler's attention as a process of its own, and no
message, no span and no id ever goes to the wrong one. What a reader sees is read from outside.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from correlation_target import (
    by_process,
    correlation_settings,
    exported,
    ids_of,
    register,
    report_to,
    report_to_each,
    socket_of,
    stack_of,
)
from host_profiler import HostProfiler
from publishing_target import socket_folder
from target_process import Target

from splunk_profiler.inspector import Reader

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

_MODES = ["true", "auto"]
_FEW = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as made:
        yield made


@pytest.mark.parametrize(("mode", "count"), [("true", _FEW), ("auto", 64)])
def test_forked_workers_get_their_own_messages_and_export_their_spans(
    folder: Path, tmp_path: Path, mode: str, count: int
) -> None:
    with Target(
        "correlated_forks.py", "prefork", str(count), env=correlation_settings(folder, tmp_path, mode)
    ) as target:
        parent = target.json("ready")
        with HostProfiler(socket_of(target.pid)) as host:
            register(target, host)
        target.tell("fork")
        target.line("forked")
        children = [json.loads(line) for line in target.lines(count, "child")]
        before = by_process(target, "early", "simple")
        sockets = report_to_each(target, [parent, *children], mode)
        assert len(sockets) == count + 1, "a process has the socket of another"
        target.tell("end")
        assert target.json("statuses") == [0] * count
        target.line("end")
        assert target.finish() == 0, target.output
        pids = {child["pid"] for child in children}
        if mode == "auto":
            assert before.keys() == pids, "a child waited for a profiler that it has not heard of"
        for exporter in ("simple", "batch"):
            own = by_process(target, "own", exporter)
            assert own == {pid: ids_of(pid) for pid in {target.pid, *pids}}
            assert by_process(target, "early", exporter) == dict.fromkeys(pids)
            assert by_process(target, "waits while it is forked", exporter) == {target.pid: None}
            assert by_process(target, "open while it is forked", exporter) == dict.fromkeys({target.pid, *pids})
        assert "Traceback" not in target.output, target.output
    assert not list(folder.iterdir()), "a socket was left behind"


@pytest.mark.parametrize(
    ("how", "mode"), [("fork", "true"), ("fork", "auto"), ("forkserver", "auto"), ("spawn", "true")]
)
def test_multiprocessing_children_get_their_messages_and_export_at_exit(
    folder: Path, tmp_path: Path, how: str, mode: str
) -> None:
    with Target("correlated_forks.py", how, str(_FEW), env=correlation_settings(folder, tmp_path, mode)) as target:
        parent = target.json("ready")
        target.tell("fork")
        children = [json.loads(line) for line in target.lines(_FEW, "child")]
        assert len(report_to_each(target, [parent, *children], mode)) == _FEW + 1
        target.tell("end")
        assert target.json("statuses") == [0] * _FEW
        target.line("end")
        assert target.finish() == 0, target.output
        pids = {target.pid, *(child["pid"] for child in children)}
        assert by_process(target, "own", "simple") == {pid: ids_of(pid) for pid in pids}
        assert "Traceback" not in target.output, target.output


def children_of(pid: int) -> list[int]:
    """The processes that process `pid` has forked and that are still there."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text("ascii").split()]
        except OSError:
            continue  # a thread that has ended
    return found


def socket_named_by(pid: int) -> str:
    """The path of the socket that the process storage of process `pid` names."""
    with Reader(pid) as reader:
        report = reader.read()
    assert report.storage is not None, "a child leads nowhere"
    return report.storage.socket_path


def test_a_child_never_leads_nowhere_whenever_it_is_looked_at(folder: Path, tmp_path: Path) -> None:
    """From its first instant on it leads to its parent's socket, or to its own."""
    count = 20
    with Target("correlated_forks.py", "one-by-one", str(count), env=correlation_settings(folder, tmp_path)) as target:
        target.json("ready")
        parents = socket_of(target.pid)
        target.tell("fork")
        seen: dict[int, set[str]] = {}
        for number in range(1, count + 1):
            introduced = False
            while not introduced:
                introduced = len(target.lines(0, "child")) >= number  # and one look more
                for pid in children_of(target.pid):
                    seen.setdefault(pid, set()).add(socket_named_by(pid))
            target.tell("")
            target.lines(number, "ended")  # a child that ends leads nowhere, and rightly
        target.line("done")
        target.tell("end")
        assert target.finish() == 0, target.output
    assert len(seen) == count
    own = [paths - {parents} for paths in seen.values()]
    assert all(len(paths) == 1 for paths in own)
    assert len(set().union(*own)) == count


@pytest.mark.skipif(find_spec("gunicorn") is None, reason="gunicorn is not there for this interpreter")
@pytest.mark.parametrize("mode", _MODES)
def test_gunicorn_workers_forked_while_profiled_get_their_own_messages(folder: Path, tmp_path: Path, mode: str) -> None:
    words = [sys.executable, "-m", "gunicorn", "--preload", "--bind", "127.0.0.1:0", "--workers", str(_FEW)]
    with Target(*words, "correlated_requests:application", env=correlation_settings(folder, tmp_path, mode)) as target:
        url = target.find(r"Listening at: (http://[0-9.:]+)")
        workers = {int(pid) for pid in target.lines(_FEW, "worker")}
        with ExitStack() as stack:
            hosts = {pid: stack.enter_context(HostProfiler(socket_of(pid))) for pid in workers}
            for host in hosts.values():
                host.register()
            for pid in workers:
                target.find(rf'^log {{"pid": {pid}, .*(has registered)')
            answers: list[dict[str, Any]] = []
            while {answer["pid"] for answer in answers} != workers:
                with urlopen(url, timeout=60) as response:  # of our own server
                    answers.append(json.load(response))
                answer = answers[-1]
                report_to(hosts[answer["pid"]], answer, stack_of(answer["span_id"]))
            assert exported(target) == []
            target.signal(signal.SIGTERM)
            assert target.finish() == 0, target.output
        wanted = {answer["name"]: (answer["pid"], ids_of(answer["span_id"])) for answer in answers}
        assert {one["name"]: (one["pid"], one["ids"]) for one in exported(target)} == wanted
        assert len(exported(target)) == len(answers)
    assert not list(folder.iterdir()), "a socket was left behind"
