"""The numbers of records that an exporter process tells its host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import find_exporters, wait_for_end
from receiver_process import Receiver
from target_process import profiling_settings

from splunk_profiler.config import Resolved, from_env
from splunk_profiler.exporter_process.launch import find_interpreter
from splunk_profiler.lifecycle.process_export import ProcessExport
from splunk_profiler.model import RecordCounters
from splunk_profiler.stream.codec import encode
from splunk_profiler.stream.records import (
    COMPLETE,
    HEADER,
    EndRecord,
    FrameRecord,
    Record,
    ResourceRecord,
    SnapshotRecord,
    StackRecord,
    StartRecord,
    ThreadEntry,
    ThreadRecord,
)
from splunk_profiler.stream.writer import json_object

SECOND_NS = 1_000_000_000
INNER_PID = 2  # as a process in a namespace of its own sees itself


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Receiver], Resolved]:
    """Set the environment of a process that is profiled into a receiver."""

    def set_environment(receiver: Receiver) -> Resolved:
        for name, value in profiling_settings(receiver.url, 1000, OTEL_SERVICE_NAME="shop").items():
            monkeypatch.setenv(name, value)
        return from_env()

    return set_environment


def stream(output: ProcessExport, resolved: Resolved, snapshots: int) -> bytes:
    """Return a stream of one thread that works."""
    now_ns = time.time_ns()
    entry = ThreadEntry(1, 1, 0, 0, SECOND_NS, 2, 0)
    settings = output.settings(resolved)
    assert settings["pid"] == os.getpid()
    records: list[Record] = [
        StartRecord(json_object({**settings, "pid": INNER_PID})),
        ResourceRecord(1, json_object({"service.name": "shop"}), ""),
        FrameRecord(1, 7, 5, "shop", "work", "shop.py", ""),
        StackRecord(1, 0, [1]),
        ThreadRecord(1, 0x7000, 100, 10, 20, "worker"),
    ]
    times = range(snapshots + 1)  # the first snapshot is the baseline
    records += [
        SnapshotRecord(now_ns + at, 10 * SECOND_NS + at, 0, SECOND_NS, SECOND_NS, at, 0, COMPLETE, 0, [entry], [])
        for at in (number * SECOND_NS for number in times)
    ]
    return HEADER + b"".join(map(encode, records))


def test_host_knows_what_was_delivered_when_it_has_stopped(profiled: Callable[[Receiver], Resolved]) -> None:
    with Receiver() as receiver:
        resolved = profiled(receiver)
        output = ProcessExport.new(find_interpreter())
        data = stream(output, resolved, 3)
        assert output.send(data + encode(EndRecord(0, 20 * SECOND_NS, 0, 30 * SECOND_NS)))
        output.stop(30)
        assert output.counters() == RecordCounters(recorded=3, delivered=3)
        receiver.catch_up()
        assert [record["resource"]["process.pid"] for record in receiver.records()] == [INNER_PID] * 3
    for exporter in find_exporters(os.getpid()):
        wait_for_end(exporter)


def test_records_that_waited_in_a_killed_exporter_are_lost(profiled: Callable[[Receiver], Resolved]) -> None:
    with Receiver(mode="hang") as receiver:
        resolved = profiled(receiver)
        output = ProcessExport.new(find_interpreter())
        assert output.send(stream(output, resolved, 3))
        receiver.exports(1, answer="hang")
        deadline_s = time.monotonic() + 30
        while output.counters().waiting < 3:
            assert time.monotonic() < deadline_s
            assert output.send(b"")
        (exporter,) = find_exporters(os.getpid())
        os.kill(exporter, signal.SIGKILL)
        wait_for_end(exporter)
        while output.send(b""):
            assert time.monotonic() < deadline_s
        assert output.counters() == RecordCounters(recorded=3, lost_at_exit=3)
        output.stop(0)
    for other in find_exporters(os.getpid()):
        wait_for_end(other)
