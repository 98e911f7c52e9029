"""Exporter processes as seen from outside: found by their command line and by the names of their sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from profile_files import wait_until
from target_process import Target, let_exporter_run

from splunk_profiler.cli.delivery_checks import ask_exporter
from splunk_profiler.cli.process_checks import find_exporter
from splunk_profiler.exporter_process.connection import ExporterConnection
from splunk_profiler.exporter_process.launch import Launcher, find_interpreter
from splunk_profiler.exporter_process.status import StatusError

FACTORY = "echo_session:EchoSession"  # in `targets`, which has to be on the path
_TITLE = b"splunk-profiler exporter for PID "
_TIMEOUT_S = 30.0


def find_exporters(host: int) -> list[int]:
    """Return the process ids of the exporters that this process has started, zombies excepted."""
    return [pid for pid in _exporters() if b"%s%d " % (_TITLE, host) in _read(pid, "cmdline")]


def started_exporter(host: int) -> int:
    """Wait for the only exporter that a process starts, and return its process id."""
    wait_until(lambda: bool(find_exporters(host)))  # it has its command line a moment after its start
    (pid,) = find_exporters(host)
    return pid


def exporters_with_variable(setting: str) -> list[int]:
    """Return the process ids of the exporters that have inherited a variable, ``NAME=value`` or the end of that."""
    return [pid for pid in _exporters() if f"{setting}\0".encode() in _read(pid, "environ")]


def _exporters() -> list[int]:
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if b"\0" + _TITLE in _read(pid, "cmdline")]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def serves(host: int) -> bool:
    """Return True if the exporter of a host answers, and has admitted it: one that starts does neither yet."""
    found = find_exporter(host)
    with contextlib.suppress(StatusError):
        return found is not None and bool(ask_exporter(found))
    return False


def listens(connection: ExporterConnection) -> bool:
    """Return True if there is a socket of the connection's name, listening or connected."""
    return connection.name[1:] in Path("/proc/net/unix").read_bytes()


def wait_for_end(pid: int, timeout_s: float = _TIMEOUT_S) -> None:
    """Wait until a process, which need not be a child, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(timeout_s * 1000)
        assert ended, f"process {pid} still runs after {timeout_s} s: {_read(pid, 'cmdline').decode()!r}"
    finally:
        os.close(descriptor)


def end_with_exporters(target: Target) -> None:
    """End a program that runs until its standard input ends, which must end well, and wait for its exporters."""
    exporters = find_exporters(target.pid)
    target.close_stdin()
    assert target.finish() == 0, target.output
    for exporter in exporters:
        wait_for_end(exporter)


def send(connection: ExporterConnection, data: bytes) -> None:
    """Send until it is taken: an exporter that has ended is started again after a pause."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not connection.send(data):
        assert time.monotonic() < deadline_s, connection.failure
        let_exporter_run()


def receive(connection: ExporterConnection, count: int = 1) -> list[bytes]:
    """Wait for so many messages."""
    messages: list[bytes] = []
    deadline_s = time.monotonic() + _TIMEOUT_S
    while len(messages) < count:
        assert time.monotonic() < deadline_s, f"only {messages}; {connection.failure}"
        messages += connection.receive()
        let_exporter_run()
    return messages


def ask(connection: ExporterConnection, question: bytes) -> bytes:
    """Send a line to the session, and return its answer."""
    send(connection, question + b"\n")
    return receive(connection)[0]


def exporter_pid(connection: ExporterConnection) -> int:
    """Return the process id of the connected exporter."""
    return int(ask(connection, b"pid").split()[0])


def new_connection(
    factory: str = FACTORY, token: str = "", clock: Callable[[], float] = time.monotonic
) -> ExporterConnection:
    """Return a connection to an exporter with these sessions; by default to one that no other process knows."""
    return ExporterConnection(Launcher(find_interpreter(), factory), token or os.urandom(16).hex(), clock)


def dial(name: bytes) -> socket.socket:
    """Connect to the socket of this name, and say nothing."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(name)  # waits for its place in the backlog, as it does without a timeout only
    made.settimeout(_TIMEOUT_S)
    return made


@contextlib.contextmanager
def connected(factory: str = FACTORY, token: str = "") -> Iterator[ExporterConnection]:
    """Make a connection to an exporter, by default of `EchoSession`; no exporter may be left behind in the end."""
    connection = new_connection(factory, token)
    try:
        yield connection
    finally:
        connection.close(0)
        for pid in find_exporters(os.getpid()):
            wait_for_end(pid)
        assert not listens(connection)
