"""Processes that connect to an exporter, or take its name, and are not of its tree."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from target_process import environment

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import (
    FACTORY,
    dial,
    exporter_pid,
    find_exporters,
    listens,
    new_connection,
    wait_for_end,
)

from splunk_profiler._walker import OwnedSocket
from splunk_profiler.exporter_process.connection import ExporterConnection
from splunk_profiler.exporter_process.launch import Launcher, find_interpreter
from splunk_profiler.exporter_process.transport import (
    CHALLENGE_BYTES,
    LENGTH,
    MAX_CONNECTIONS,
    PROOF_BYTES,
    QUESTION,
    frame,
    prove_asker,
    prove_exporter,
    prove_host,
    socket_name,
)

pytestmark = pytest.mark.usefixtures("sessions_on_path")

_TOKEN = os.urandom(16).hex()
_CHALLENGE = bytes(CHALLENGE_BYTES)
_PROOF = prove_host(_TOKEN, _CHALLENGE)
_CHILD = """
import sys
from exporter_processes import new_connection
connection = new_connection(token=sys.argv[1])
print(connection.send(b"secret"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def exporter_token() -> str:
    return _TOKEN


def _connect(connection: ExporterConnection) -> socket.socket:
    return dial(connection.name)


def test_process_of_the_user_without_the_token_is_refused(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    answer = frame(prove_exporter(_TOKEN, _CHALLENGE))
    for proof in (bytes(PROOF_BYTES), prove_exporter(_TOKEN, _CHALLENGE), prove_host("another", _CHALLENGE)):
        with _connect(connection) as stranger:
            stranger.sendall(_CHALLENGE + proof)
            with stranger.makefile("rb") as stream:
                assert stream.read() == answer  # and the end
    with _connect(connection) as host:
        host.sendall(_CHALLENGE + _PROOF + b"pid\n")
        with host.makefile("rb") as stream:
            (length,) = LENGTH.unpack(stream.read(len(answer) + LENGTH.size)[len(answer) :])
            assert stream.read(length) == b"%d %d" % (pid, os.getpid())


def test_strangers_cannot_disturb_other_connections(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    for garbage in (b"raise\n", b"\0" * 1_000_000, b""):
        with _connect(connection) as stranger:
            try:
                stranger.sendall(garbage)
            except (BrokenPipeError, ConnectionResetError):
                assert len(garbage) > len(_CHALLENGE)
    with _connect(connection):
        assert exporter_pid(connection) == pid
    assert connection.generation == 1


def test_strangers_take_no_place_of_a_host(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    with ExitStack() as strangers:
        for _ in range(MAX_CONNECTIONS + 1):
            strangers.enter_context(_connect(connection))
        other = new_connection(token=_TOKEN)
        assert exporter_pid(other) == pid
        assert other.close(30)


def test_connections_beyond_the_limit_are_told_why_they_are_refused(connection: ExporterConnection) -> None:
    pid = exporter_pid(connection)
    with ExitStack() as others:
        for _ in range(MAX_CONNECTIONS - 1):
            other = others.enter_context(_connect(connection))
            other.sendall(_CHALLENGE + _PROOF + b"pid\n")
            with other.makefile("rb") as stream:
                assert stream.read(1)
        with _connect(connection) as last, last.makefile("rb") as stream:
            last.sendall(_CHALLENGE + _PROOF)
            assert stream.read().endswith(b"serves 256 others already")
        with _connect(connection) as command, command.makefile("rb") as stream:
            command.sendall(_CHALLENGE + prove_asker(_TOKEN, _CHALLENGE) + QUESTION.pack(0))
            assert stream.read() == frame(prove_exporter(_TOKEN, _CHALLENGE)) + frame(b""), "a question takes no place"
        assert exporter_pid(connection) == pid


def test_another_user_is_refused(connection: ExporterConnection) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "stranger = socket.socket(socket.AF_UNIX)\n"
        "stranger.connect(os.fsencode(sys.argv[1]).replace(b'@', b'\\0', 1))\n"
        "print(stranger.recv(100))\n"
    )
    pid = exporter_pid(connection)
    name = connection.name.decode().replace("\0", "@")
    done = subprocess.run(
        [sys.executable, "-c", program, name], capture_output=True, text=True, timeout=60, check=True, cwd="/"
    )
    assert done.stdout == "b''\n"
    assert exporter_pid(connection) == pid


def test_name_taken_by_another_user_is_given_up(connection: ExporterConnection) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "taken = socket.socket(socket.AF_UNIX)\n"
        "taken.bind(os.fsencode(sys.argv[1]).replace(b'@', b'\\0', 1))\n"
        "taken.listen()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    name = connection.name
    command = [sys.executable, "-c", program, name.decode().replace("\0", "@")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == b"ready\n"
        assert not connection.send(b"data\n")
        assert "taken by user 65534" in connection.failure
        assert connection.name != name
        assert exporter_pid(connection) in find_exporters(os.getpid())
        assert taker.stdin is not None
        taker.stdin.close()


def test_parent_that_has_started_no_exporter_gets_a_challenge_only() -> None:
    token = os.urandom(16).hex()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(socket_name(token, os.geteuid()))
        taken.listen()
        command = [sys.executable, "-c", _CHILD, token]
        with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"True\n"
            accepted, _ = taken.accept()
            with accepted:
                assert len(accepted.recv(1000)) == CHALLENGE_BYTES
                accepted.setblocking(False)
                with pytest.raises(BlockingIOError):
                    accepted.recv(1000)


def test_exporter_that_only_a_stranger_is_connected_to_ends() -> None:
    connection = new_connection()
    listener = OwnedSocket.listen(connection.name)
    Launcher(find_interpreter(), FACTORY)(listener, os.urandom(16).hex())
    listener.close()
    while not (pids := find_exporters(os.getpid())):  # it has no command line for a moment
        assert listens(connection)
    with _connect(connection):
        for pid in pids:
            wait_for_end(pid)
    assert not listens(connection)
