"""The sessions of a real exporter process: where they fail, cannot be loaded, or hang while they are."""

from __future__ import annotations

import json
import logging
import os

import pytest

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import (
    ask,
    connected,
    find_exporters,
    new_connection,
    receive,
    send,
    started_exporter,
    wait_for_end,
)

from splunk_profiler.exporter_process.connection import ExporterConnection
from splunk_profiler.exporter_process.launch import DEFAULT_FACTORY

pytestmark = pytest.mark.usefixtures("sessions_on_path")


def test_session_that_fails_loses_its_connection_and_says_why(connection: ExporterConnection) -> None:
    assert ask(connection, b"first") == b"first"
    assert connection.send(b"second\nraise\n")
    assert receive(connection) == [b"second"]
    while connection.generation == 1:
        assert connection.receive() == []
    assert ask(connection, b"third") == b"third"


def test_host_is_told_why_its_stream_cannot_be_read() -> None:
    with connected(DEFAULT_FACTORY) as connection:
        send(connection, b"no stream of a profiler")
        message = json.loads(receive(connection)[0])
    assert message["level"] == logging.WARNING
    assert "an error in a session of the exporter was caught" in message["text"]
    assert 'StreamError("byte 0: this is no stream of the profiler' in message["text"]


def test_exporter_that_cannot_load_its_sessions_says_why() -> None:
    connection = new_connection("no_such_module:make")
    assert connection.send(b"data\n")
    assert b"No module named 'no_such_module'" in receive(connection)[0]
    connection.close(0)
    for pid in find_exporters(os.getpid()):
        wait_for_end(pid)


def test_exporter_that_hangs_while_it_loads_its_sessions_ends() -> None:
    connection = new_connection("hanging_session:make")
    assert connection.send(b"data\n")
    wait_for_end(started_exporter(os.getpid()))
    connection.close(0)


def test_exporter_that_serves_is_ended_by_no_alarm(connection: ExporterConnection) -> None:
    assert ask(connection, b"alarm") == b"0"
