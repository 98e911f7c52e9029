"""When an exporter that cannot be started, or has ended, is started again."""

from __future__ import annotations

import gc
import logging
import os
from contextlib import suppress
from itertools import count

import pytest
from interrupted_lines import is_interrupted

pytest.importorskip("splunk_profiler._walker")
from splunk_profiler._walker import OwnedSocket
from splunk_profiler.exporter_process import connection as connection_module
from splunk_profiler.exporter_process.connection import ExporterConnection
from splunk_profiler.system.threads import Worker


class FailingLaunch:
    """A launch that never works, and a clock: the times of its attempts are noted."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.attempts_s: list[float] = []

    def __call__(self, listener: OwnedSocket, _token: str) -> None:
        self.attempts_s.append(self.now_s)
        raise PermissionError(f"no process for {listener.descriptor}")

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def launch() -> FailingLaunch:
    return FailingLaunch()


def test_launch_is_tried_again_after_growing_pauses(launch: FailingLaunch) -> None:
    connection = ExporterConnection(launch, os.urandom(16).hex(), launch.clock)
    for _ in range(800):
        assert not connection.send(b"data")
        launch.now_s += 0.25
    offsets_s = [at_s - 1000 for at_s in launch.attempts_s]
    assert offsets_s == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_pause_is_short_again_after_a_long_time(launch: FailingLaunch) -> None:
    connection = ExporterConnection(launch, os.urandom(16).hex(), launch.clock)
    for pause_s in (0, 1, 2, 4, 100, 1):
        launch.now_s += pause_s
        connection.send(b"")
    assert len(launch.attempts_s) == 6


def test_failed_launch_is_said_and_logged_once_a_minute(
    launch: FailingLaunch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = ExporterConnection(launch, os.urandom(16).hex(), launch.clock)
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        for _ in range(480):
            assert not connection.send(b"")
            assert connection.failure.startswith("no process for ")
            launch.now_s += 0.25
    assert len(launch.attempts_s) == 7
    assert len(caplog.records) == 2
    assert connection.close(0)


def test_child_that_is_forked_during_a_launch_closes_the_listener() -> None:
    statuses: list[int] = []

    def fork(listener: OwnedSocket, _token: str) -> None:
        descriptor, inherited = listener.descriptor, os.fstat(listener.descriptor)
        child = os.fork()
        if child == 0:
            _ = connection.generation  # as each use in a child does first
            with suppress(OSError):  # gRPC, where it is loaded, opens files of its own in the child
                os._exit(os.path.samestat(os.fstat(descriptor), inherited))
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])
        raise PermissionError(f"no process for {descriptor}")

    connection = ExporterConnection(fork, os.urandom(16).hex())
    assert not connection.send(b"data")
    assert statuses == [0]


def test_connection_that_a_raising_handler_interrupts_can_be_closed(launch: FailingLaunch) -> None:
    def use(connection: ExporterConnection) -> None:
        connection.send(b"data")
        connection.receive()
        connection.close(0)

    def interrupt_everywhere() -> None:
        for line in count(1):
            connection = ExporterConnection(launch, os.urandom(16).hex(), launch.clock)
            was_interrupted = is_interrupted(lambda: use(connection), connection_module, line)  # noqa: B023
            use(connection)
            lines.append(line)
            if not was_interrupted:
                return

    lines: list[int] = []
    worker = Worker("interrupted", interrupt_everywhere)
    worker.start()
    assert worker.join(60), f"it waits for ever after an exception at line {len(lines) + 1}"
    assert len(lines) > 50
    gc.collect()  # a socket of an interrupted line may be in a cycle, on CPython 3.12 and later
