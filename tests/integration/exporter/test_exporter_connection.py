"""A connection to a real exporter process: what it carries, and what happens when either side ends or stops."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from target_process import TREE

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import (
    ask,
    connected,
    exporter_pid,
    find_exporters,
    new_connection,
    receive,
    send,
    started_exporter,
    wait_for_end,
)

from splunk_profiler._walker import OwnedSocket
from splunk_profiler.exporter_process.connection import MAX_ANSWER_S, MAX_BUFFERED_BYTES, ExporterConnection
from splunk_profiler.exporter_process.transport import CHALLENGE_BYTES, frame
from splunk_profiler.system.threads import read_proc_file

pytestmark = pytest.mark.usefixtures("sessions_on_path")

_CHUNK = b"drop " + b"x" * 65530 + b"\n"


def test_connection_carries_data_and_answers_in_order(connection: ExporterConnection) -> None:
    assert connection.send(b"one\ntw")
    assert connection.send(b"o\n")
    assert receive(connection, 2) == [b"one", b"two"]
    assert connection.generation == 1
    assert connection.close(30)
    assert not connection.send(b"three\n")
    assert not connection.send(b"")


def test_exporter_finds_its_library_by_the_pythonhome_of_its_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in {"lib", sys.platlibdir}:
        (tmp_path / folder).symlink_to(Path(sys.base_prefix, folder))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with connected() as connection:
        assert ask(connection, b"prefix") == os.fsencode(tmp_path)


def test_exporter_does_not_look_in_a_pythonhome_that_is_meant_for_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    with connected() as connection:
        assert ask(connection, b"prefix") == os.fsencode(sys.base_prefix)


def test_close_without_a_connection_has_nothing_to_send() -> None:
    connection = new_connection()
    assert connection.receive() == []
    assert connection.close(0)
    assert not find_exporters(os.getpid())


def test_close_sends_what_is_buffered(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    os.kill(pid, signal.SIGSTOP)
    while connection.send(_CHUNK):
        pass
    os.kill(pid, signal.SIGCONT)
    assert connection.close(30)


def _connections_with_one_token() -> tuple[ExporterConnection, ExporterConnection]:
    token = os.urandom(16).hex()
    return new_connection(token=token), new_connection(token=token)


def test_second_process_with_the_token_shares_the_exporter() -> None:
    connection, other = _connections_with_one_token()
    pid = exporter_pid(connection)
    assert exporter_pid(other) == pid
    assert other.close(30)
    assert ask(connection, b"still here") == b"still here"
    assert connection.close(30)
    wait_for_end(pid)


def test_data_is_kept_while_another_process_starts_the_exporter(connection: ExporterConnection) -> None:
    with socket.socket(socket.AF_UNIX) as starter:
        starter.bind(connection.name)
        assert connection.send(b"one\n")
        assert connection.send(b"two\n")
        assert connection.generation == 1
    assert connection.send(b"three\n")  # the other process has failed: this one starts it
    assert receive(connection, 3) == [b"one", b"two", b"three"]


def test_data_is_kept_while_many_hosts_wait_for_an_exporter_that_loads(connection: ExporterConnection) -> None:
    with socket.socket(socket.AF_UNIX) as loading, socket.socket(socket.AF_UNIX) as other_host:
        loading.bind(connection.name)
        loading.listen(0)
        other_host.connect(connection.name)
        assert connection.send(b"one\n")
        assert connection.send(b"two\n")
        assert connection.generation == 1
    assert connection.send(b"three\n")  # it has ended: this process starts one
    assert receive(connection, 3) == [b"one", b"two", b"three"]


def test_close_waits_for_another_process_that_starts_the_exporter() -> None:
    connection, other = _connections_with_one_token()
    with socket.socket(socket.AF_UNIX) as starter:
        starter.bind(connection.name)
        assert connection.send(b"drop\n")
        assert not connection.close(0.1)
        assert other.send(b"drop\n")
        closing = threading.Thread(target=lambda: ends.append(other.close(30)))
        ends: list[bool] = []
        closing.start()
    closing.join()
    assert ends == [True]


def test_process_that_has_taken_the_name_gets_a_challenge_only(connection: ExporterConnection) -> None:
    with socket.socket(socket.AF_UNIX) as taker:
        taker.bind(connection.name)
        taker.listen()
        assert connection.send(b"secret\n")
        assert connection.receive() == []
        accepted, _ = taker.accept()
        with accepted:
            accepted.sendall(frame(bytes(16)))
            assert connection.receive() == []
            assert "does not know its secret" in connection.failure
            assert connection.generation == 2
            assert len(accepted.recv(1000)) == CHALLENGE_BYTES
            assert accepted.recv(1000) == b""
        assert ask(connection, b"to another") == b"to another"
        assert exporter_pid(connection) in find_exporters(os.getpid())


def test_process_that_has_taken_the_name_and_is_silent_twice_is_left() -> None:
    now_s = time.monotonic()
    connection = ExporterConnection(_no_launch, os.urandom(16).hex(), lambda: now_s)
    with socket.socket(socket.AF_UNIX) as taker:
        taker.bind(connection.name)
        taker.listen()
        name = connection.name
        for max_answer_s in (MAX_ANSWER_S, 2 * MAX_ANSWER_S):
            assert connection.name == name
            assert connection.send(b"secret\n")
            now_s += max_answer_s - 1
            assert connection.send(b"more\n")
            now_s += 1
            assert not connection.send(b"more\n")
            assert "does not answer" in connection.failure
            accepted, _ = taker.accept()
            with accepted:
                assert len(accepted.recv(1000)) == CHALLENGE_BYTES
        assert connection.name != name
    connection.close(0)


def test_start_after_an_exporter_that_hung_says_nothing_of_one_that_ended(caplog: pytest.LogCaptureFixture) -> None:
    now_s = time.monotonic()
    hung: list[int] = []
    connection = ExporterConnection(
        lambda listener, _token: hung.append(os.dup(listener.descriptor)), os.urandom(16).hex(), lambda: now_s
    )
    try:
        for _ in range(10):
            connection.send(b"more\n")
            now_s += 61  # no log line is left out
        assert len(hung) > 1
        assert any("does not answer" in line for line in caplog.messages)
        assert not any("ends before" in line for line in caplog.messages)
    finally:
        connection.close(0)
        for descriptor in hung:
            os.close(descriptor)


def test_application_that_closes_the_socket_before_an_answer_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    now_s = time.monotonic()
    connection = new_connection(clock=lambda: now_s)
    connection.send(b"one\n")
    exporter = started_exporter(os.getpid())
    (ours,) = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if _leads_to(entry, connection)]
    os.close(ours)
    os.kill(exporter, signal.SIGKILL)
    wait_for_end(exporter)
    for _ in range(2):
        now_s += 61
        connection.send(b"two\n")
    assert caplog.messages == [
        "the exporter process cannot be reached or started: the application closes all descriptors again and again"
    ]
    connection.close(0)
    for pid in find_exporters(os.getpid()):
        wait_for_end(pid)


def _no_launch(_listener: OwnedSocket, _token: str) -> None:
    raise PermissionError("no process here")


def test_token_of_a_tree_whose_exporter_has_ended_leads_to_a_new_one() -> None:
    token = os.urandom(16).hex()
    pids = []
    for _ in range(2):
        connection = new_connection(token=token)
        pids.append(exporter_pid(connection))
        assert connection.close(30)
        wait_for_end(pids[-1])
    assert pids[0] != pids[1]


def test_exporter_says_in_ps_what_it_is_and_for_whom(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    assert find_exporters(os.getpid()) == [pid]
    shown = subprocess.run(
        ["ps", "-ww", "-o", "comm=,args=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("splunk-exporter ")
    assert f"splunk-profiler exporter for PID {os.getpid()} (" in shown.stdout


def test_exporter_gets_the_variables_it_needs_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_TESTED", "ü")
    others = {"DATABASE_PASSWORD", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_SERVICE_NAME", "DD_TAGS", TREE}
    for name in others:
        monkeypatch.setenv(name, "secret")
    with connected() as connection:
        assert ask(connection, b"env LC_TESTED").decode() == "ü"
        names = {
            line.partition("=")[0] for line in read_proc_file(f"/proc/{exporter_pid(connection)}/environ").split("\0")
        }
    assert not others & names
    assert not {name for name in names if name.startswith("PYTHON")}


def test_exporter_is_not_instrumented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(1)", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    with connected() as connection:
        assert ask(connection, b"runs") == b"runs"


def test_stopped_exporter_leaves_the_host_with_a_bounded_buffer(
    connection: ExporterConnection, caplog: pytest.LogCaptureFixture
) -> None:
    pid = exporter_pid(connection)
    os.kill(pid, signal.SIGSTOP)
    taken = sum(connection.send(_CHUNK) for _ in range(2 * MAX_BUFFERED_BYTES // len(_CHUNK)))  # a wait had no end
    assert not connection.send(_CHUNK)
    assert MAX_BUFFERED_BYTES - len(_CHUNK) < taken * len(_CHUNK) < MAX_BUFFERED_BYTES + 1_000_000
    assert not connection.send(b"")  # before half of the buffer is free, nothing new is begun
    assert MAX_BUFFERED_BYTES - len(_CHUNK) < connection.unsent_bytes <= MAX_BUFFERED_BYTES
    assert len([line for line in caplog.messages if "does not keep up" in line]) == 1
    assert connection.generation == 1
    os.kill(pid, signal.SIGCONT)
    sent = len(b"pid\n") + taken * len(_CHUNK) + len(b"count\n")
    assert int(ask(connection, b"count")) == sent
    assert connection.close(30)


def test_killed_exporter_is_started_again_and_counted(
    connection: ExporterConnection, caplog: pytest.LogCaptureFixture
) -> None:
    pid = exporter_pid(connection)
    os.kill(pid, signal.SIGSTOP)
    while connection.send(_CHUNK):
        pass  # until that is logged
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    assert not connection.send(b"lost\n")
    assert connection.generation == 2
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        for _ in range(2):
            second = exporter_pid(connection)
            os.kill(second, signal.SIGKILL)
            wait_for_end(second)
    assert second != pid
    (full, again) = caplog.messages  # of each kind one a minute
    assert "does not keep up" in full
    assert "started again (1 times so far)" in again


def test_socket_that_the_application_closed_is_replaced(connection: ExporterConnection, tmp_path: Path) -> None:
    pid = exporter_pid(connection)
    (ours,) = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if _leads_to(entry, connection)]
    with socket.socket(socket.AF_UNIX) as other, (tmp_path / "file").open("w+b", buffering=0) as file:
        other.connect(connection.name)  # the exporter would end with its last connection
        os.dup2(file.fileno(), ours)
        try:
            assert not connection.send(b"lost\n")
            assert connection.generation == 2
            assert connection.receive() == []
            assert exporter_pid(connection) == pid
            assert connection.close(30)
            os.fstat(ours)  # it was not closed
            assert (tmp_path / "file").read_bytes() == b""
        finally:
            os.close(ours)


def _leads_to(entry: Path, connection: ExporterConnection) -> bool:
    try:
        with socket.socket(fileno=os.dup(int(entry.name))) as copy:
            return bool(copy.getpeername() == connection.name)
    except OSError:
        return False


def test_close_ends_in_time_when_the_exporter_is_slow(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    assert ask(connection, b"slow\nanswer") == b"answer"
    assert not connection.close(0.2)
    wait_for_end(pid, 10)


def test_close_ends_in_time_when_the_exporter_is_stopped(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    os.kill(pid, signal.SIGSTOP)
    started_s = time.monotonic()
    assert not connection.close(0.2)
    assert time.monotonic() - started_s < 5
    os.kill(pid, signal.SIGCONT)


def test_exporter_does_not_wait_for_threads_of_what_it_has_loaded(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    send(connection, b"linger\n")
    assert connection.close(30)
    wait_for_end(pid)


def test_data_that_is_larger_than_the_buffer_is_dropped(connection: ExporterConnection) -> None:
    assert not connection.send(b"x" * (MAX_BUFFERED_BYTES + 1))
    send(connection, b"small\n")
    assert receive(connection) == [b"small"]
