"""When the output of a process knows that it has no exporter process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from target_process import TESTS

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import FACTORY, exporter_pid, find_exporters, wait_for_end

from splunk_profiler._walker import OwnedSocket
from splunk_profiler.exporter_process.connection import MAX_ANSWER_S, ExporterConnection
from splunk_profiler.exporter_process.launch import Interpreter, Launcher, find_interpreter
from splunk_profiler.lifecycle.process_export import ProcessExport

_MAX_VARIABLE_BYTES = 128 << 10  # of a program that is executed, on Linux
_SILENCES_S = (MAX_ANSWER_S, 2 * MAX_ANSWER_S)  # after which a connection and then a name is left


def _no_launch(_listener: OwnedSocket, _token: str) -> None:
    raise PermissionError("no process here")


def test_output_taken_by_a_silent_process_only_has_no_exporter() -> None:
    now_s = time.monotonic()
    connection = ExporterConnection(_no_launch, os.urandom(16).hex(), lambda: now_s)
    output = ProcessExport(connection, lambda: now_s)
    with socket.socket(socket.AF_UNIX) as taker:
        taker.bind(connection.name)
        taker.listen()
        assert output.send(b"lost\n")
    for _ in range(3):
        now_s += MAX_ANSWER_S
        assert not output.send(b"not sent\n")
    assert output.failure == "no process here"
    output.stop(0)


@pytest.mark.parametrize(
    ("said", "stopped_s", "pauses"),
    [('{"cpu_ns": 7}', 70, 7), ('{"level": 30, "text": "settings are not usable"}', 0, 2)],
)
def test_output_whose_exporter_cannot_be_started_again_has_none(
    said: str, stopped_s: int, pauses: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has only complained never worked. How long one was stopped does not count against the next."""
    monkeypatch.syspath_prepend(str(TESTS / "targets"))
    now_s = 1000.0  # whole, so that differences are exact, too: beyond 16384 s a machine's time is rounded more
    launchers: list[Callable[[OwnedSocket, str], None]] = [Launcher(find_interpreter(), FACTORY)]

    def launch(listener: OwnedSocket, token: str) -> None:
        (launchers.pop() if launchers else _no_launch)(listener, token)

    connection = ExporterConnection(launch, os.urandom(16).hex(), lambda: now_s)
    output = ProcessExport(connection, lambda: now_s)
    pid = exporter_pid(connection)
    assert output.send(f"{said}\n".encode())
    while output.cpu_ns() != 7 and not caplog.messages:  # its session sends it back
        assert output.send(b"drop\n")
    os.kill(pid, signal.SIGSTOP)
    while output.send(b"drop\n" * 10_000):
        pass
    now_s += stopped_s
    assert not output.send(b"drop\n" * 10_000)
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    for _ in range(pauses):  # the first one notices that the stream has to begin anew
        assert not output.failure  # it may be started again
        now_s += 12
        assert not output.send(b"drop\n")
    assert output.failure == "no process here"
    output.stop(0)


@pytest.mark.parametrize(
    ("mode", "reason"), [(None, "No such file"), (0o644, "Permission denied"), (0o755, "Exec format error")]
)
def test_output_whose_program_cannot_be_executed_has_no_exporter(mode: int | None, reason: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    if mode is not None:
        program.write_text("not a program", "utf-8")
        program.chmod(mode)
    _assert_has_no_exporter(Interpreter(str(program), "", ()), reason)


def test_output_of_a_too_large_environment_has_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "x" * _MAX_VARIABLE_BYTES)
    _assert_has_no_exporter(find_interpreter(), "Argument list too long")


def _assert_has_no_exporter(interpreter: Interpreter, reason: str) -> None:
    """Expect it to be known at the first attempt of a tree of its own: one of this tree may just be ending."""
    output = ProcessExport(ExporterConnection(Launcher(interpreter), os.urandom(16).hex()))
    assert not output.send(b"lost\n")
    assert reason in output.failure
    output.stop(0)


def test_output_whose_exporter_ends_before_it_serves_has_none() -> None:
    start_s = now_s = time.monotonic()
    ending = Interpreter(shutil.which("false") or "", "", ())
    connection = ExporterConnection(Launcher(ending), os.urandom(16).hex(), lambda: now_s)
    output = ProcessExport(connection, lambda: now_s)
    while not output.failure:
        assert now_s < start_s + 10  # it is started again meanwhile, and takes what the kernel keeps
        while output.send(b"lost\n"):
            pass
        now_s += 1
    assert now_s > start_s + 3
    output.stop(0)


def test_output_whose_exporter_lives_and_never_answers_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an interpreter that hangs while it loads."""
    program, end = tmp_path / "python", tmp_path / "end"
    os.mkfifo(end)
    program.write_text(f"#!/bin/sh\nread -r line < '{end}'\n", "utf-8")
    program.chmod(0o755)
    start_s = now_s = time.monotonic()
    silent = Interpreter(str(program), "", ())
    connection = ExporterConnection(Launcher(silent), os.urandom(16).hex(), lambda: now_s)
    output = ProcessExport(connection, lambda: now_s)
    try:
        while not output.failure and now_s < start_s + 2 * sum(_SILENCES_S):
            is_sent = output.send(b"kept until then\n")
            assert is_sent or now_s >= start_s + _SILENCES_S[0]
            now_s += 1
        assert output.failure == "the process that has the exporter's name does not answer"
        assert now_s > start_s + sum(_SILENCES_S)  # beside busy processes it may need long to load
        assert len([line for line in caplog.messages if "does not answer" in line]) == 2
    finally:
        output.stop(0)
        end.write_text("\n", "utf-8")  # waits until it is read
        for pid in find_exporters(os.getpid()):
            wait_for_end(pid)


def test_output_whose_sessions_end_without_a_report_has_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the exporter, which another process keeps alive, can make no more threads."""
    monkeypatch.syspath_prepend(str(TESTS / "targets"))
    start_s = now_s = time.monotonic()
    launcher, token = Launcher(find_interpreter(), FACTORY), os.urandom(16).hex()
    another = ExporterConnection(launcher, token)
    assert another.send(b"drop\n")
    output = ProcessExport(ExporterConnection(launcher, token, lambda: now_s), lambda: now_s)
    assert output.send(b'{"cpu_ns": 7}\n')
    while output.cpu_ns() != 7:
        assert output.send(b"drop\n")
    while not output.failure:
        assert now_s < start_s + 120
        while output.send(b"raise\n"):
            pass
        now_s += 1
    assert output.failure == "it reports nothing"
    assert now_s > start_s + 60  # it might have been started again
    output.stop(0)
    another.close(0)
