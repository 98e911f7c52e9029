"""Threads that are read go on as if nothing had been, whatever happens to them or to the inspector meanwhile.

And the oracle for publishers: what is read of threads that switch as fast as they can is never a mixture.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from inspected_process import InspectedProcess, TargetBuilder, import_path, record_bytes, run_inspected
from target_process import Target

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.errors import AlreadyTracedError
from splunk_profiler.inspector.model import ThreadReading
from splunk_profiler.inspector.tracer import Tracer

MIN_READS = 1_000  # a hundred find out threads that do not keep to the protocol
FLIPPING_THREADS = 2  # more of them only make each stop wait for a time slice

READ_LOOP_PROGRAM = """
import sys
from splunk_profiler.inspector import Reader
with Reader(int(sys.argv[1])) as reader:
    print("reading", flush=True)
    while True:
        reader.sample()
"""
TRACE_LOOP_PROGRAM = """
import sys
from splunk_profiler.inspector.tracer import Tracer
from splunk_profiler.inspector.errors import AlreadyTracedError
tracer = Tracer(int(sys.argv[1]))
print("reading", flush=True)
while True:
    try:
        tracer.visit([int(sys.argv[1])], bool)
    except AlreadyTracedError:
        pass
"""
HOLD_PROGRAM = """
import os, sys
from splunk_profiler.inspector.tracer import Tracer
pid = int(sys.argv[1])
tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
Tracer(pid).visit(tids, lambda tid: print("holding", flush=True) or sys.stdin.read())
"""
SUSPEND_PROGRAM = """
import os, signal, sys
from splunk_profiler.inspector.tracer import Tracer
os.setpgid(0, 0)  # Ctrl-Z reaches a process group
Tracer(int(sys.argv[1])).visit([int(sys.argv[1])], lambda tid: os.kill(0, signal.SIGTSTP))
"""


def read_status(pid: int, tid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/task/{tid}/status").read_text("utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        lines = ["State: X", "TracerPid: 0"]  # it has ended
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def list_tids(pid: int) -> list[int]:
    return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())


def stopped_or_traced(pid: int) -> list[int]:
    found = [(tid, read_status(pid, tid)) for tid in list_tids(pid)]
    return [tid for tid, fields in found if fields["State"][0] in "Tt" or fields["TracerPid"] != "0"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def start_inspector(program: str, pid: int) -> Target:
    return Target(sys.executable, "-c", program, str(pid), env={"PYTHONPATH": import_path()})


def is_mixed(thread: ThreadReading) -> bool:
    """Return True if a reading mixes parts of two published records."""
    assert thread.correlation is not None
    assert thread.labels is not None
    found = thread.correlation
    marks = set(bytes.fromhex(found.trace_id + found.span_id + found.transaction_id)) | {found.trace_flags}
    return len(marks) != 1 or len(set(thread.labels[0].value)) != 1


def count_mixed_reads(target: InspectedProcess, min_reads: int) -> tuple[int, int, int]:
    """Of `min_reads` reads of flipping threads: how many were a mixture, not valid, and different from each other."""
    done = mixed = invalid = 0
    seen = set()
    with Reader(target.pid) as reader:
        while done < min_reads:
            # On a busy machine one may take too long to stop: it is left out, or not read.
            workers = [thread for thread in reader.sample() if thread.name.startswith("worker-") and thread.was_stopped]
            done += len(workers)
            mixed += sum(is_mixed(thread) for thread in workers)
            for thread in workers:
                assert thread.correlation is not None
                invalid += not thread.correlation.valid
                seen.add((thread.tid, thread.correlation.trace_id))
    return mixed, invalid, len(seen)


@pytest.mark.takes_long
@pytest.mark.usefixtures("high_priority")
def test_threads_that_switch_as_fast_as_they_can_are_never_read_in_between(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels())
        target.do(f"flip {FLIPPING_THREADS} whole", "started")
        assert count_mixed_reads(target, MIN_READS) == (0, 0, 2 * FLIPPING_THREADS)


def test_threads_that_write_in_place_without_invalidating_are_found_out(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels())
        target.do(f"flip {FLIPPING_THREADS} torn", "started")
        mixed, _, _ = count_mixed_reads(target, 100)
        assert mixed > 0


def test_thread_that_another_inspector_lets_go_of_is_read_or_reported(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target, start_inspector(TRACE_LOOP_PROGRAM, target.pid) as inspector:
        inspector.line("reading")
        read = held = 0
        while read < 2000 or held < 2000:
            try:
                read += len(Tracer(target.pid).visit([target.pid], bool))
            except AlreadyTracedError:
                held += 1
        inspector.signal(signal.SIGKILL)
        inspector.finish()


def test_inspector_killed_at_any_moment_leaves_no_thread_stopped(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels())
        target.do(f"flip {FLIPPING_THREADS} whole", "started")
        for _ in range(5):
            with start_inspector(READ_LOOP_PROGRAM, target.pid) as inspector:
                inspector.line("reading")
                wait_until(lambda: bool(stopped_or_traced(target.pid)))
                inspector.signal(signal.SIGKILL)
                inspector.finish()
            assert not stopped_or_traced(target.pid)


def test_inspector_killed_while_it_holds_threads_leaves_none_stopped(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.do("hold 4", "started")
        with start_inspector(HOLD_PROGRAM, target.pid) as inspector:
            inspector.line("holding")
            assert set(stopped_or_traced(target.pid)) == set(list_tids(target.pid))
            inspector.signal(signal.SIGKILL)
            inspector.finish()
        assert not stopped_or_traced(target.pid)
        target.do("record null")  # and it still obeys


def test_no_thread_is_left_stopped_by_an_inspector_that_is_interrupted(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels())
        target.do(f"flip {FLIPPING_THREADS} whole", "started")
        for _ in range(3):
            with start_inspector(READ_LOOP_PROGRAM, target.pid) as inspector:
                inspector.line("reading")
                inspector.signal(signal.SIGINT)
                assert inspector.finish() != 0
            assert not stopped_or_traced(target.pid)


def test_inspector_suspended_while_it_holds_threads_lets_them_go_first(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        command = [sys.executable, "-c", SUSPEND_PROGRAM, str(target.pid)]
        inspector = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": import_path()})
        try:
            os.waitid(os.P_PID, inspector.pid, os.WSTOPPED)
            assert not stopped_or_traced(target.pid)
        finally:
            inspector.kill()
            inspector.wait()


def test_an_error_while_threads_are_held_lets_all_of_them_go(workshop: TargetBuilder) -> None:
    def fail(_tid: int) -> None:
        raise RuntimeError("in the middle")

    with run_inspected(workshop) as target:
        target.do("hold 12", "started")
        tracer = Tracer(target.pid)
        with pytest.raises(RuntimeError, match="in the middle"):
            tracer.visit(list_tids(target.pid), fail)
        assert not stopped_or_traced(target.pid)
        assert not tracer.pending_tids


def test_every_signal_that_arrives_while_threads_are_stopped_is_delivered(workshop: TargetBuilder) -> None:
    count = 2_000
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("hold 3", "started")
        with Reader(target.pid) as reader:
            for _ in range(count):
                os.kill(target.pid, signal.SIGRTMIN)
                assert len(reader.sample()) == 4
        assert target.do(f"signals {count}") == f"handled {count}"


def test_a_signal_that_was_waiting_at_the_stop_is_delivered(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())

        def kill(_tid: int) -> None:
            os.kill(target.pid, signal.SIGTERM)

        Tracer(target.pid).visit([target.pid], kill)
        assert target.finish() == -signal.SIGTERM


def test_a_process_that_is_stopped_is_read_and_stays_stopped(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("record " + record_bytes().hex())
        target.do("hold 2", "started")
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED)
        with Reader(target.pid) as reader:
            for _ in range(100):
                assert sum(thread.correlation is not None for thread in reader.sample()) == 3
        wait_until(lambda: all(read_status(target.pid, tid)["State"][0] == "T" for tid in list_tids(target.pid)))
        os.kill(target.pid, signal.SIGCONT)
        target.do("record null")
        assert not stopped_or_traced(target.pid)


def test_a_thread_that_sleeps_in_the_kernel_is_named_and_not_waited_for(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        sleeper = int(target.do("vfork", "tid").split()[1])
        wait_until(lambda: read_status(target.pid, sleeper)["State"].startswith("D"))
        with Reader(target.pid) as reader:
            readings = {thread.tid: thread for thread in reader.sample()}
        assert not readings[sleeper].was_stopped
        assert readings[target.pid].was_stopped
        target.do("wake", "awake")


def test_a_thread_that_does_not_stop_is_not_read_and_let_go_once_it_does(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        sleeper = int(target.do("vfork", "tid").split()[1])
        wait_until(lambda: read_status(target.pid, sleeper)["State"].startswith("D"))
        tracer, read = Tracer(target.pid), list[int]()
        assert tracer.visit([sleeper, target.pid], read.append) == {target.pid: None}
        assert tracer.pending_tids == {sleeper}
        assert not tracer.detach_pending()
        target.tell("wake")
        wait_until(tracer.detach_pending)
        assert read == [target.pid]
        target.line("awake")
        assert not stopped_or_traced(target.pid)


@pytest.mark.usefixtures("high_priority")
def test_threads_are_let_go_while_another_one_is_waited_for(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.do("hold 1", "started")
        (worker,) = set(list_tids(target.pid)) - {target.pid}
        sleeper = int(target.do("vfork", "tid").split()[1])
        wait_until(lambda: read_status(target.pid, sleeper)["State"].startswith("D"))
        read = list[tuple[int, list[int]]]()

        def wake(tid: int) -> None:
            read.append((tid, stopped_or_traced(target.pid)))
            if tid == worker:
                target.tell("wake")

        tracer = Tracer(target.pid)
        tracer.visit([sleeper, worker], wake)
        wait_until(tracer.detach_pending)
        target.line("awake")
        assert read == [(worker, [worker, sleeper]), (sleeper, [sleeper])]
        assert not stopped_or_traced(target.pid)


def test_threads_that_end_while_they_are_read_are_left_out(workshop: TargetBuilder) -> None:
    program = (
        "import threading\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    threads = [threading.Thread(target=int) for _ in range(8)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
    )
    with Target(sys.executable, "-c", program, env={"LD_PRELOAD": str(workshop.labels())}) as target:
        target.line("ready")
        with Reader(target.pid) as reader:
            for _ in range(500):
                assert target.pid in {thread.tid for thread in reader.sample()}
        assert target.pid not in stopped_or_traced(target.pid)


def test_a_thread_that_executes_another_program_meanwhile_goes_on(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        tracer = Tracer(target.pid)
        tracer.visit([target.pid], lambda tid: tid)
        target.tell("exec 300")
        visits = 0
        while target.output.count("ready") < 2:
            tracer.visit(list_tids(target.pid), lambda tid: tid)
            visits += 1
            assert tracer.detach_pending()
        assert visits > 0
        wait_until(lambda: not stopped_or_traced(target.pid))
        target.tell("record null")
        target.line("no inspected_record")


def test_a_thread_that_is_listed_twice_is_visited_once(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        tracer, visited = Tracer(target.pid), list[int]()
        assert tracer.visit([target.pid, target.pid], visited.append) == {target.pid: None}
        assert visited == [target.pid]
        assert tracer.detach_pending()


def test_a_process_whose_first_thread_has_ended_is_still_read(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("hold 2", "started")
        target.tell("leave")
        wait_until(lambda: read_status(target.pid, target.pid)["State"].startswith("Z"))
        with Reader(target.pid) as reader:
            report = reader.read()
        assert [thread.correlation is not None for thread in report.threads] == [True, True]
        assert report.storage is not None


def test_process_killed_while_its_parent_reads_it_is_left_to_the_parent(
    workshop: TargetBuilder,
) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("hold 12", "started")

        def kill(tid: int) -> None:
            if tid != target.pid:
                os.kill(target.pid, signal.SIGKILL)

        tracer = Tracer(target.pid)
        tracer.visit(list_tids(target.pid), kill)
        wait_until(tracer.detach_pending)
        assert target.finish() == -signal.SIGKILL


def test_process_killed_while_another_process_reads_it_is_reaped(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("hold 12", "started")
        with start_inspector(HOLD_PROGRAM, target.pid) as inspector:
            inspector.line("holding")
            target.signal(signal.SIGKILL)
            inspector.close_stdin()
            assert inspector.finish() == 0
        assert target.finish() == -signal.SIGKILL


def test_reading_oneself_is_refused_with_words() -> None:
    program = "import os; from splunk_profiler.inspector import Reader; Reader(os.getpid())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "a process cannot inspect itself" in done.stderr
