"""Refusals of the inspector: the message says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from inspected_process import TargetBuilder, import_path, run_inspected
from target_process import Target

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.errors import NoSuchProcessError, NotPermittedError, NotPythonError, ProcessEndedError


def test_an_absent_process_is_reported_as_absent() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(NoSuchProcessError, match=f"there is no process {gone.pid}"):
        Reader(gone.pid)


def test_a_thread_is_distinguished_from_a_process(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("hold 1", "started")
        with Reader(target.pid) as reader:
            (tid,) = (thread.tid for thread in reader.sample() if thread.tid != target.pid)
        with pytest.raises(NoSuchProcessError, match=f"a thread of process {target.pid}: inspect that one"):
            Reader(tid)


def test_an_ended_process_that_is_not_collected_is_reported_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NoSuchProcessError, match="has ended"):
        Reader(child.pid)
    child.wait()


def test_a_process_that_runs_no_python_and_publishes_nothing_is_refused(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target, pytest.raises(NotPythonError, match="does not run Python"):
        Reader(target.pid)


def test_a_process_that_ends_between_two_reads_is_reported_as_ended(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        with Reader(target.pid) as reader:
            assert len(reader.sample()) == 1
            target.close_stdin()
            assert target.finish() == 0
            with pytest.raises(ProcessEndedError):
                reader.sample()
            with pytest.raises(ProcessEndedError):
                reader.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_gets_an_error_with_the_remedy(workshop: TargetBuilder) -> None:
    program = "import os, sys; from splunk_profiler.inspector import Reader; os.setuid(65534); Reader(int(sys.argv[1]))"
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        done = subprocess.run(
            [sys.executable, "-c", program, str(target.pid)], capture_output=True, text=True, check=False
        )
    assert "NotPermittedError" in done.stderr
    assert "belongs to user 0 and this is user 65534: run as that user, or as root" in done.stderr


def test_a_process_with_another_tracer_is_reported_as_traced(workshop: TargetBuilder) -> None:
    hold = (
        "import sys; from splunk_profiler.inspector.tracer import Tracer\n"
        "pid = int(sys.argv[1])\n"
        "Tracer(pid).visit([pid], lambda tid: print('holding', flush=True) or input())"
    )
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        with Target(sys.executable, "-c", hold, str(target.pid), env={"PYTHONPATH": import_path()}) as other:
            other.line("holding")
            with pytest.raises(NotPermittedError, match=f"already traced by process {other.pid}"):
                Reader(target.pid).read()


def test_killed_process_that_is_not_reaped_is_reported_as_ended(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        with Reader(target.pid) as reader:
            os.kill(target.pid, signal.SIGKILL)
            os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
            for read_again in (reader.read, reader.sample):
                with pytest.raises(ProcessEndedError):
                    read_again()
