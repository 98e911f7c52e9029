"""The host agent on real processes, turn by turn: what it samples, where it sends it, what it does if that fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import Correlated, Pace, Receiver, agent, correlated, is_registration
from inspected_process import Inspected, Workshop, import_path, inspected, record_bytes, storage
from target_process import Target

from splunk_profiler.inspector.events import Busy, Ended, Followed, Registered, Reported, Unseen
from splunk_profiler.inspector.messages import Registration
from splunk_profiler.inspector.outbox import Loss

HOLD = """
import sys
from splunk_profiler.inspector.architecture import ARCHITECTURES
from splunk_profiler.inspector.tracer import Tracer
from os import uname
architecture = next(one for one in ARCHITECTURES if one.name == uname().machine)
pid = int(sys.argv[1])
Tracer(pid, architecture).visit([pid], lambda tid: print("holding", flush=True) or sys.stdin.readline())
print("let go", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "s") as receiver:
        yield receiver


def in_a_transaction(target: Inspected, workshop: Workshop, path: str) -> None:
    """Its first thread waits for orders inside a transaction."""
    target.publish(workshop.elastic(), socket_path=path)
    target.do("record " + record_bytes().hex())


def asleep(pid: int) -> None:
    """Returns when its first thread waits for orders."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline
        os.sched_yield()


def sent(pace: Pace) -> dict[Correlated, int]:
    """What the agent says that it sent."""
    found: dict[Correlated, int] = {}
    for event in pace.events(Reported):
        if event.loss is None:
            key = Correlated(event.sample.trace_id, event.sample.transaction_id, event.sample.place.stack_trace_id)
            found[key] = found.get(key, 0) + event.count
    return found


def test_each_turn_samples_every_thread_in_a_transaction_and_sends_one_message(
    workshop: Workshop, receiver: Receiver
) -> None:
    pace = Pace(turns=4)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        target.do("hold 1", "started")
        with agent(pace, target.pid, off_cpu=True, host_id="here") as running:
            totals = running.run()
    messages = receiver.messages()
    assert messages[0] == bytes.fromhex("020001006400000004000000") + b"here"
    assert len(messages) == 1 + 2 * 4
    found = correlated(messages)
    assert found == sent(pace)
    assert {(one.trace_id, one.transaction_id) for one in found} == {("11" * 16, "33" * 8), ("01" * 16, "01" * 8)}
    assert (totals.processes, totals.registrations, totals.messages, totals.samples) == (1, 1, 8, 8)
    (followed,) = pace.events(Followed)
    assert followed.storage.service_name == "shop"
    assert pace.events(Registered) == [Registered(target.pid, receiver.path, Registration(100, "here"), None)]


def test_only_threads_on_a_cpu_are_sampled_by_default(workshop: Workshop, receiver: Receiver) -> None:
    pace = Pace(turns=4)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        target.do("flip 1 whole", "started")
        asleep(target.pid)
        with agent(pace, target.pid) as running:
            running.run()
    found = correlated(receiver.messages())
    assert {one.trace_id for one in found} <= {"01" * 16, "02" * 16}, "the first thread sleeps and was left alone"
    assert found.total() == 4


def test_threads_without_a_trace_are_not_reported(workshop: Workshop, receiver: Receiver) -> None:
    pace = Pace(turns=4)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        records = [record_bytes(present=0), record_bytes(valid=0), record_bytes(transaction=bytes(8))]
        for record in records:
            target.do("record " + record.hex())
            with agent(Pace(turns=2), target.pid, off_cpu=True, registers=False) as running:
                assert running.run().samples == 0
        target.do("record null")
        with agent(pace, target.pid, off_cpu=True, registers=False) as running:
            running.run()
    assert receiver.messages() == []
    assert pace.events(Registered) == []


def test_equal_stack_traces_of_two_processes_have_equal_ids(workshop: Workshop, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        with Receiver(tmp_path / name) as receiver, inspected(workshop) as target:
            in_a_transaction(target, workshop, receiver.path)
            with agent(Pace(turns=3), target.pid, off_cpu=True) as running:
                running.run()
            found.append(correlated(receiver.messages()))
    assert found[0] == found[1]
    assert list(found[0].values()) == [3]


def test_samples_that_are_gathered_are_reported_as_counts_at_the_interval_and_at_the_end(
    workshop: Workshop, receiver: Receiver
) -> None:
    pace = Pace(turns=10)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(pace, target.pid, period_s=0.25, report_period_s=1.0, off_cpu=True) as running:
            totals = running.run()
    assert [event.count for event in pace.events(Reported)] == [5, 4, 1], "the first interval has both of its ends"
    assert (totals.messages, totals.samples) == (3, 10)
    assert correlated(receiver.messages()) == sent(pace)
    assert pace.events(Registered)[0].registration.samples_delay_ms == 1100


def test_a_queue_that_is_full_costs_messages_and_no_time_and_each_loss_is_told(
    workshop: Workshop, receiver: Receiver
) -> None:
    pace = Pace(turns=60)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(pace, target.pid, off_cpu=True) as running:
            totals = running.run()
    messages = receiver.messages()
    assert totals.messages == len(messages) - 1
    assert totals.lost_messages == totals.lost_samples == {Loss.QUEUE_FULL: 60 - totals.messages}
    assert correlated(messages) == sent(pace)
    assert len(pace.events(Reported)) == 60


def test_a_socket_that_goes_away_costs_messages_and_one_that_takes_its_place_is_registered_with(
    workshop: Workshop, tmp_path: Path
) -> None:
    first, second = Receiver(tmp_path / "first"), Receiver(tmp_path / "second")

    def meanwhile(turn: int) -> None:
        if turn == 2:
            first.close()
        elif turn == 8:
            target.do(storage("shop", "", second.path))

    pace = Pace(turns=10, meanwhile=meanwhile)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, first.path)
        with agent(pace, target.pid, period_s=0.1, off_cpu=True) as running:
            totals = running.run()
    messages = second.messages()
    second.close()
    assert totals.lost_samples == {Loss.SOCKET_GONE: 6}
    assert is_registration(messages[0])
    assert correlated(messages).total() == 2, "also those of the turn in which it was noticed"
    assert totals.samples == 4
    assert [event.socket_path for event in pace.events(Registered)] == [first.path, second.path]


def test_a_process_that_publishes_later_is_followed_from_then_on(workshop: Workshop, receiver: Receiver) -> None:
    def meanwhile(turn: int) -> None:
        if turn == 3:
            target.do(storage("shop", "", receiver.path))

    pace = Pace(turns=6, meanwhile=meanwhile)
    with inspected(workshop) as target:
        target.do(f"load {workshop.elastic()}", "loaded")
        target.do("record " + record_bytes().hex())
        with agent(pace, target.pid, period_s=0.1, off_cpu=True) as running:
            running.run()
    assert [type(event) for event in pace.told[:3]] == [Unseen, Followed, Registered]
    (unseen,) = pace.events(Unseen)
    assert [reason.code for reason in unseen.reasons] == ["storage-null"]
    assert correlated(receiver.messages()).total() == 2, "it is followed from the fourth turn, sampled from the fifth"


def test_a_storage_that_is_withdrawn_ends_the_following_until_there_is_another(
    workshop: Workshop, receiver: Receiver
) -> None:
    def meanwhile(turn: int) -> None:
        if turn in (2, 4):
            target.do("storage null" if turn == 2 else storage("shop", "", receiver.path))

    pace = Pace(turns=6, meanwhile=meanwhile)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(pace, target.pid, period_s=0.1, off_cpu=True) as running:
            totals = running.run()
    assert [type(event) for event in pace.told if not isinstance(event, Reported)] == [
        Followed,
        Registered,
        Unseen,
        Followed,
        Registered,
    ]
    assert totals.lost_samples == {Loss.UNPUBLISHED: 1}
    assert totals.processes == 1
    assert correlated(receiver.messages()) == sent(pace)


def test_a_registration_that_is_lost_is_sent_again_a_second_later(workshop: Workshop, receiver: Receiver) -> None:
    def meanwhile(turn: int) -> None:
        if turn == 2:
            assert len(receiver.messages()) > 1

    pace = Pace(turns=5, meanwhile=meanwhile)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(Pace(turns=60), target.pid, off_cpu=True, registers=False) as other:
            other.run()
        with agent(pace, target.pid, off_cpu=True) as running:
            totals = running.run()
    assert [event.loss for event in pace.events(Registered)] == [Loss.QUEUE_FULL, None]
    assert (totals.registrations, totals.lost_registrations) == (1, 1)
    assert is_registration(receiver.messages()[0])


def test_processes_are_dropped_as_they_end_and_the_work_is_over_with_the_last(
    workshop: Workshop, tmp_path: Path
) -> None:
    def meanwhile(turn: int) -> None:
        if turn == 2:
            first.hang_up()
            assert first.finish() == 0
        elif turn == 4:
            os.kill(second.pid, signal.SIGKILL)
            os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)

    pace = Pace(turns=50, meanwhile=meanwhile)
    with (
        Receiver(tmp_path / "a") as one,
        Receiver(tmp_path / "b") as two,
        inspected(workshop) as first,
        inspected(workshop) as second,
    ):
        in_a_transaction(first, workshop, one.path)
        in_a_transaction(second, workshop, two.path)
        with agent(pace, first.pid, second.pid, first.pid, off_cpu=True, report_period_s=60) as running:
            totals = running.run()
        assert one.messages()[1:] == [], "its path leads through the process, which was gone"
    assert [event.pid for event in pace.events(Ended)] == [first.pid, second.pid]
    assert totals.processes == 2
    assert totals.samples + totals.lost_samples[Loss.SOCKET_GONE] == 2 + 4


def test_a_process_that_somebody_else_holds_is_said_to_be_busy_and_sampled_afterwards(
    workshop: Workshop, receiver: Receiver
) -> None:
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with Target(sys.executable, "-c", HOLD, str(target.pid), env={"PYTHONPATH": import_path()}) as other:
            other.line("holding")

            def meanwhile(turn: int) -> None:
                if turn == 3:
                    other.tell("go on")
                    other.line("let go")

            pace = Pace(turns=5, meanwhile=meanwhile)
            with agent(pace, target.pid, off_cpu=True) as running:
                totals = running.run()
    assert totals.busy == 3
    assert len(pace.events(Busy)) == 1
    assert str(other.pid) in pace.events(Busy)[0].text
    assert correlated(receiver.messages()).total() == 2


def test_a_process_that_becomes_another_program_is_given_up(workshop: Workshop, receiver: Receiver) -> None:
    def meanwhile(turn: int) -> None:
        if turn == 2:
            target.tell("exec 0")
            target.lines(2, "ready")

    pace = Pace(turns=50, meanwhile=meanwhile)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(pace, target.pid, off_cpu=True) as running:
            totals = running.run()
    (ended,) = pace.events(Ended)
    assert "does not run Python" in ended.text
    assert (totals.processes, totals.given_up) == (1, 1)
    assert correlated(receiver.messages()).total() == totals.samples == 2


def test_a_stall_is_not_made_up_for(workshop: Workshop, receiver: Receiver) -> None:
    def meanwhile(turn: int) -> None:
        if turn == 1:
            pace.now += 3.0

    pace = Pace(turns=3, meanwhile=meanwhile)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(pace, target.pid, off_cpu=True) as running:
            totals = running.run()
    assert totals.samples == 3
    assert totals.missed == 6


def test_the_duration_ends_the_work(workshop: Workshop, receiver: Receiver) -> None:
    pace = Pace(turns=50)
    with inspected(workshop) as target:
        in_a_transaction(target, workshop, receiver.path)
        with agent(pace, target.pid, off_cpu=True, duration_s=1.75) as running:
            assert running.run().samples == 4
    assert pace.now == 1001.75
