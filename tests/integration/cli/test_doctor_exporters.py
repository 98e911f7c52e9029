"""The doctor says which exporter process serves a process, or that threads of it do the work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from target_process import TESTS, environment

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import exporter_pid, new_connection, wait_for_end

from splunk_profiler.cli.checks import Finding, Verdict
from splunk_profiler.cli.process_checks import check_process, find_exporter

_STARTER = """
import sys
from exporter_processes import exporter_pid, new_connection
connection = new_connection(token=sys.argv[1])
print(exporter_pid(connection), flush=True)
sys.stdin.read()
"""
_ADDRESS = "127.0.0.1:9"  # where nothing listens


def _exporter_finding(target: str) -> Finding:
    findings = check_process(os.getpid(), target, find_exporter(os.getpid()))
    (found,) = (one for one in findings if one.subject == "exporter")
    return found


def test_exporter_that_another_process_has_started_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "targets"))
    token = os.urandom(16).hex()
    command = [sys.executable, "-c", _STARTER, token]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        exporter = int(starter.stdout.readline())
        assert "no exporter process is connected to it" in _exporter_finding(_ADDRESS).fact
        connection = new_connection(token=token)
        assert exporter_pid(connection) == exporter
        assert starter.stdin is not None
        starter.stdin.close()
        starter.wait()
        for target in (_ADDRESS, ""):
            fact = f"process {exporter} makes records and sends them"
            assert _exporter_finding(target) == Finding(Verdict.GOOD, "exporter", fact)
        assert connection.close(30)
    wait_for_end(exporter)


def test_threads_that_export_are_said_where_no_exporter_is_connected() -> None:
    pytest.importorskip("grpc")
    fact = "no exporter process is connected to it: threads of its own make records and send them"
    remedy = "what becomes of these says the log of the process (logger splunk_profiler)"
    assert _exporter_finding(_ADDRESS) == Finding(Verdict.GOOD, "exporter", fact, remedy)
