"""The doctor says which exporter process serves a process, or that threads of it do the work."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from command_line import splunk_profiler
from receiver_process import Receiver
from target_process import TESTS, Target, environment, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import connected, exporter_pid, find_exporters, new_connection, wait_for_end

from splunk_profiler.cli.checks import Finding, Verdict
from splunk_profiler.cli.process_checks import check_process, find_exporter

_STARTER = """
import sys
from exporter_processes import connected, exporter_pid, new_connection
connection = new_connection(token=sys.argv[1])
print(exporter_pid(connection), flush=True)
sys.stdin.read()
"""
_ADDRESS = "127.0.0.1:9"  # where nothing listens


def _exporter_finding(target: str) -> Finding:
    exporter = find_exporter(os.getpid())
    findings = check_process(os.getpid(), target, exporter and exporter.pid)
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


def test_names_of_other_sockets_cannot_lead_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "targets"))
    with connected() as connection:
        pid = exporter_pid(connection)
        exporter = find_exporter(os.getpid())
        assert exporter is not None
        assert (exporter.pid, exporter.end.name) == (pid, connection.name)
        with socket.socket(socket.AF_UNIX) as broken, socket.socket(socket.AF_UNIX) as forged:
            broken.bind(b"\0broken\nline %d" % pid)
            forged.bind(b"\0forged\n0: 0 0 0 0 0 %d @elsewhere" % exporter.end.inode)
            assert find_exporter(os.getpid()) == exporter


def test_child_that_only_inherits_the_connection_has_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "targets"))
    reader, writer = os.pipe()
    with connected() as connection:
        exporter_pid(connection)
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        assert find_exporter(os.getpid()) is not None
        assert find_exporter(child) is None
        os.close(writer)
        os.waitpid(child, 0)
    os.close(reader)


def test_threads_that_export_are_said_where_no_exporter_is_connected() -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("splunk_profiler._walker").show_in_maps("")  # another test may have left its reason
    fact = "no exporter process is connected to it: threads of its own make records and send them"
    remedy = "the log of the process says what becomes of them (logger splunk_profiler)"
    assert _exporter_finding(_ADDRESS) == Finding(Verdict.GOOD, "exporter", fact, remedy)


def _facts_on_exporter(*options: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """Return what the doctor says of it, by section."""
    answer = json.loads(splunk_profiler("doctor", "--no-export", "--json", *options, env=env).stdout)
    return {each["section"]: each["fact"] for each in answer["findings"] if each["subject"] == "exporter"}


@pytest.mark.parametrize(
    ("condition", "settings", "reason"),
    [
        ("subreaper", {}, "this process adopts orphans"),
        ("frozen", {}, "the application is frozen"),
        ("no exec", {}, "[Errno 1] Operation not permitted"),  # known after a start only
        ("", {"SPLUNK_PROFILER_EXPORTER": "thread"}, "SPLUNK_PROFILER_EXPORTER=thread"),
        ("", {"SPLUNK_PROFILER_WALKER": "portable"}, "the portable walker is in use"),
    ],
)
def test_service_whose_threads_export_says_why(condition: str, settings: dict[str, str], reason: str) -> None:
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url, 10), **settings}
        with Target("exported_service.py", condition, env=env) as target:
            receiver.record()
            facts = _facts_on_exporter("--pid", str(target.pid))
            target.tell("stop")
            assert target.finish() == 0, target.output
    assert facts.keys() == {"Process"}
    assert f"threads of its own make records and send them: {reason}" in facts["Process"]


def test_exporter_of_a_service_is_not_guessed_from_the_doctors_own_process() -> None:
    with Receiver() as receiver, Target("exported_service.py", env=profiling_settings(receiver.url, 10)) as target:
        receiver.record()
        (exporter,) = find_exporters(target.pid)
        facts = _facts_on_exporter("--pid", str(target.pid))
        target.tell("stop")
        assert target.finish() == 0, target.output
    assert facts == {"Process": f"process {exporter} makes records and sends them"}


def test_doctor_without_a_process_speaks_of_services_of_its_environment() -> None:
    facts = _facts_on_exporter(env={"SPLUNK_PROFILER_ENABLED": "true"})
    assert facts["Interpreter"].startswith("a process beside a service started from here makes records")
    facts = _facts_on_exporter(env={"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_EXPORTER": "thread"})
    assert facts["Interpreter"].startswith("threads of a service started from here make records and send them: SPLUNK")
