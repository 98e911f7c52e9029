"""Refusals of the inspector: the message says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from inspected_process import TargetBuilder, import_path, run_inspected
from target_process import Target

from splunk_profiler.inspector import Reader, read
from splunk_profiler.inspector.errors import NoSuchProcessError, NotPermittedError, NotPythonError, ProcessEndedError


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> TargetBuilder:
    return TargetBuilder(tmp_path_factory.mktemp("workshop"))


def test_a_process_that_is_not_there_is_said_not_to_be() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(NoSuchProcessError, match=f"there is no process {gone.pid}"):
        read(gone.pid)


def test_a_thread_is_told_from_a_process(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("hold 1", "started")
        with Reader(target.pid) as reader:
            (tid,) = (thread.tid for thread in reader.sample() if thread.tid != target.pid)
        with pytest.raises(NoSuchProcessError, match=f"a thread of process {target.pid}: inspect that one"):
            read(tid)


def test_a_process_that_has_ended_but_is_not_collected_is_said_to_have() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NoSuchProcessError, match="has ended"):
        read(child.pid)
    child.wait()


def test_a_process_that_runs_no_python_and_publishes_nothing_is_refused(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target, pytest.raises(NotPythonError, match="does not run Python"):
        read(target.pid)


def test_a_process_that_ends_between_two_reads_is_said_to_have_ended(workshop: TargetBuilder) -> None:
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
            assert reader.sample_one(target.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_is_told_what_to_do(workshop: TargetBuilder) -> None:
    program = "import os, sys; from splunk_profiler.inspector import read; os.setuid(65534); read(int(sys.argv[1]))"
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        done = subprocess.run(
            [sys.executable, "-c", program, str(target.pid)], capture_output=True, text=True, check=False
        )
    assert "NotPermittedError" in done.stderr
    assert "belongs to user 0 and this is user 65534: run as that user, or as root" in done.stderr


def test_a_process_that_somebody_else_traces_is_said_to_be_traced(workshop: TargetBuilder) -> None:
    hold = (
        "import sys; from splunk_profiler.inspector.tracer import Tracer\n"
        "from splunk_profiler.inspector.architecture import ARCHITECTURES\n"
        "pid = int(sys.argv[1])\n"
        "Tracer(pid, ARCHITECTURES[0]).visit([pid], lambda tid: print('holding', flush=True) or input())"
    )
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        with Target(sys.executable, "-c", hold, str(target.pid), env={"PYTHONPATH": import_path()}) as other:
            other.line("holding")
            with pytest.raises(NotPermittedError, match=f"already traced by process {other.pid}"):
                read(target.pid)


def test_a_process_that_was_killed_and_is_not_collected_is_said_to_have_ended(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        with Reader(target.pid) as reader:
            os.kill(target.pid, signal.SIGKILL)
            os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
            for read_again in (reader.read, reader.sample):
                with pytest.raises(ProcessEndedError):
                    read_again()
