"""The question for the status of a host, as an exporter process answers it to commands and to strangers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from target_process import environment

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import dial, exporter_pid, new_connection, wait_for_end

from splunk_profiler.cli.process_checks import find_exporter
from splunk_profiler.cli.unix_peers import unix_peers
from splunk_profiler.exporter_process.connection import ExporterConnection
from splunk_profiler.exporter_process.transport import (
    CHALLENGE_BYTES,
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
_PROOF = prove_asker(_TOKEN, _CHALLENGE)
_GREETING = frame(prove_exporter(_TOKEN, _CHALLENGE))
_STATUS = b"status of %d after 4 bytes" % os.getpid()
_NOBODY = 65534
_SERVER = """
import os, socket, sys
from echo_session import EchoSession
from splunk_profiler.exporter_process.server import Server
from splunk_profiler.exporter_process.transport import socket_name
os.setuid(int(sys.argv[2]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(socket_name(sys.argv[1], os.geteuid()))
listener.listen()
print("ready", flush=True)
Server(listener, EchoSession, sys.argv[1]).run()
"""


@pytest.fixture
def exporter_token() -> str:
    return _TOKEN


def _connect(uid: int) -> socket.socket:
    return dial(socket_name(_TOKEN, uid))


def _question() -> bytes:
    """Return the question for the status of this process, which has one connection."""
    exporter = find_exporter(os.getpid())
    assert exporter is not None
    return QUESTION.pack(exporter.end.inode)


def _ask(*pieces: bytes, uid: int | None = None) -> bytes:
    """Send the pieces, each once the exporter has answered the challenge, and return all that comes up to the end."""
    with _connect(os.geteuid() if uid is None else uid) as asker, asker.makefile("rb") as stream:
        asker.sendall(_CHALLENGE)
        assert stream.read(len(_GREETING)) == _GREETING
        for piece in pieces:
            asker.sendall(piece)
        return stream.read()


def test_command_that_knows_the_token_is_told_the_status_of_a_host(connection: ExporterConnection) -> None:
    pid, question = exporter_pid(connection), _question()
    assert _ask(_PROOF + question) == frame(_STATUS)
    assert _ask(*(bytes([byte]) for byte in _PROOF + question)) == frame(_STATUS)
    assert _ask(_PROOF + QUESTION.pack(os.getpid())) == frame(b"")  # which is no inode of a host
    assert exporter_pid(connection) == pid


def test_hosts_that_the_exporter_sees_with_one_process_id_are_told_apart(connection: ExporterConnection) -> None:
    exporter_pid(connection)
    with _connect(os.geteuid()) as other, other.makefile("rb") as stream:
        other.sendall(_CHALLENGE + prove_host(_TOKEN, _CHALLENGE) + b"another host\n")
        assert stream.read(len(_GREETING + frame(b"another host"))).endswith(b"another host")
        end = unix_peers()[os.fstat(other.fileno()).st_ino]
        assert end.name == connection.name
        assert _ask(_PROOF + QUESTION.pack(end.inode)) == frame(b"status of %d after 13 bytes" % os.getpid())


def test_stranger_without_the_token_is_told_nothing(connection: ExporterConnection) -> None:
    exporter_pid(connection)
    of_another_challenge = prove_asker(_TOKEN, os.urandom(CHALLENGE_BYTES))
    own = _GREETING[-PROOF_BYTES:]
    for proof in (bytes(PROOF_BYTES), prove_asker("another", _CHALLENGE), of_another_challenge, own):
        assert _ask(proof) == b""


def test_askers_that_hang_or_go_disturb_neither_hosts_nor_others(connection: ExporterConnection) -> None:
    pid, question = exporter_pid(connection), _question()
    with ExitStack() as hanging:
        for words in (b"", _PROOF, _PROOF + b"\1", _PROOF + question):  # the last one does not read
            for _ in range(20):
                hanging.enter_context(_connect(os.geteuid())).sendall(_CHALLENGE + words)
        assert exporter_pid(connection) == pid
        assert _ask(_PROOF + question) == frame(b"status of %d after 8 bytes" % os.getpid())
    with _connect(os.geteuid()) as asker:
        asker.sendall(_CHALLENGE + _PROOF + question)  # and ends at once
    assert exporter_pid(connection) == pid
    assert connection.generation == 1
    assert connection.receive() == []  # no line for the log of the host


def test_asker_keeps_no_exporter_alive() -> None:
    connection = new_connection(token=_TOKEN)
    exporter, question = exporter_pid(connection), _question()
    with _connect(os.geteuid()) as asker:
        asker.sendall(_CHALLENGE + _PROOF)
        assert _ask(_PROOF + question) == frame(_STATUS)
        assert connection.close(30)
        wait_for_end(exporter)
        assert asker.recv(1000) == _GREETING
        assert asker.recv(1000) == b""


def test_root_may_ask_the_exporter_of_another_user_but_is_no_host() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    command = [sys.executable, "-c", _SERVER, _TOKEN, str(_NOBODY)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        assert _ask(_PROOF + QUESTION.pack(1), uid=_NOBODY) == frame(b"")
        assert _ask(prove_host(_TOKEN, _CHALLENGE), uid=_NOBODY) == b""
        server.kill()
