"""A process in which `time.monotonic` stands still ends in bounded time, whatever its records wait for."""

from __future__ import annotations

import os
import signal

import pytest
from exporter_processes import started_exporter
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")


def _end(target: Target) -> None:
    target.tell("end")
    assert target.finish() == 0, target.output


def test_end_with_a_frozen_clock_and_a_stopped_exporter_is_in_time() -> None:
    with Receiver() as receiver, Target("frozen_clock.py", env=profiling_settings(receiver.url)) as target:
        target.line("ready")
        receiver.record()
        exporter = started_exporter(target.pid)
        os.kill(exporter, signal.SIGSTOP)
        try:
            target.tell("freeze")
            target.line("frozen")
            _end(target)
        finally:
            os.kill(exporter, signal.SIGCONT)


def test_end_with_a_frozen_clock_where_threads_export_is_in_time() -> None:
    with Receiver(mode="hang") as receiver:
        settings = profiling_settings(receiver.url, SPLUNK_PROFILER_EXPORTER="thread")
        with Target("frozen_clock.py", env=settings) as target:
            target.line("ready")
            receiver.exports(1, answer="hang")
            target.tell("freeze")
            target.line("frozen")
            _end(target)
        receiver.switch("ok")
