"""The host agent on real processes, turn by turn: what it samples, where it sends it, what it does if that fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import CorrelationMessage, DatagramReceiver, FakeLoop, agent, decode_correlations, is_registration
from inspected_process import InspectedProcess, TargetBuilder, import_path, record_bytes, run_inspected, storage
from target_process import Target

from splunk_profiler.inspector.events import Busy, Ended, Followed, NotReady, Registered, Reported
from splunk_profiler.inspector.messages import LossReason, Registration

HOLD_PROGRAM = """
import sys
from splunk_profiler.inspector.tracer import Tracer
pid = int(sys.argv[1])
Tracer(pid).visit([pid], lambda tid: print("holding", flush=True) or sys.stdin.readline())
print("let go", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[DatagramReceiver]:
    with DatagramReceiver(tmp_path / "s") as receiver:
        yield receiver


def publish_transaction(target: InspectedProcess, workshop: TargetBuilder, path: str) -> None:
    """Its first thread waits for orders inside a transaction."""
    target.publish(workshop.elastic(), socket_path=path)
    target.do("record " + record_bytes().hex())


def wait_until_asleep(pid: int) -> None:
    """Returns when its first thread waits for orders."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline
        os.sched_yield()


def sent_counts(fake_loop: FakeLoop) -> dict[CorrelationMessage, int]:
    """Return the counts that the agent reports as sent."""
    found: dict[CorrelationMessage, int] = {}
    for event in fake_loop.events(Reported):
        if event.loss is None:
            key = CorrelationMessage(
                event.sample.trace_id, event.sample.transaction_id, event.sample.location.stack_trace_id
            )
            found[key] = found.get(key, 0) + event.count
    return found


def test_agent_sends_one_message_per_thread_in_a_transaction_at_each_turn(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    fake_loop = FakeLoop(turns=4)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        target.do("hold 1", "started")
        with agent(fake_loop, target.pid, off_cpu=True, host_id="here") as running:
            totals = running.run()
    messages = receiver.messages()
    assert messages[0] == bytes.fromhex("020001006400000004000000") + b"here"
    assert len(messages) == 1 + 2 * 4
    found = decode_correlations(messages)
    assert found == sent_counts(fake_loop)
    assert {(one.trace_id, one.transaction_id) for one in found} == {("11" * 16, "33" * 8), ("01" * 16, "01" * 8)}
    assert (totals.processes, totals.registrations, totals.messages, totals.samples) == (1, 1, 8, 8)
    (followed,) = fake_loop.events(Followed)
    assert followed.storage.service_name == "shop"
    assert fake_loop.events(Registered) == [Registered(target.pid, receiver.path, Registration(100, "here"), None)]


def test_only_threads_on_a_cpu_are_sampled_by_default(workshop: TargetBuilder, receiver: DatagramReceiver) -> None:
    fake_loop = FakeLoop(turns=4)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        target.do("flip 1 whole", "started")
        wait_until_asleep(target.pid)
        with agent(fake_loop, target.pid) as running:
            running.run()
    found = decode_correlations(receiver.messages())
    assert {one.trace_id for one in found} <= {"01" * 16, "02" * 16}, "the first thread sleeps and was left alone"
    assert found.total() == 4


def test_threads_without_a_trace_are_not_reported(workshop: TargetBuilder, receiver: DatagramReceiver) -> None:
    fake_loop = FakeLoop(turns=4)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        records = [record_bytes(present=0), record_bytes(valid=0), record_bytes(transaction=bytes(8))]
        for record in records:
            target.do("record " + record.hex())
            with agent(FakeLoop(turns=2), target.pid, off_cpu=True, send_registrations=False) as running:
                assert running.run().samples == 0
        target.do("record null")
        with agent(fake_loop, target.pid, off_cpu=True, send_registrations=False) as running:
            running.run()
    assert receiver.messages() == []
    assert fake_loop.events(Registered) == []


def test_equal_stack_traces_of_two_processes_have_equal_ids(workshop: TargetBuilder, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        with DatagramReceiver(tmp_path / name) as receiver, run_inspected(workshop) as target:
            publish_transaction(target, workshop, receiver.path)
            with agent(FakeLoop(turns=3), target.pid, off_cpu=True) as running:
                running.run()
            found.append(decode_correlations(receiver.messages()))
    assert found[0] == found[1]
    assert list(found[0].values()) == [3]


def test_agent_sends_gathered_samples_as_counts_at_intervals_and_at_exit(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    fake_loop = FakeLoop(turns=10)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(fake_loop, target.pid, period_s=0.25, report_period_s=1.0, off_cpu=True) as running:
            totals = running.run()
    assert [event.count for event in fake_loop.events(Reported)] == [5, 4, 1], "the first interval has both of its ends"
    assert (totals.messages, totals.samples) == (3, 10)
    assert decode_correlations(receiver.messages()) == sent_counts(fake_loop)
    assert fake_loop.events(Registered)[0].registration.samples_delay_ms == 1100


def test_agent_with_a_full_queue_drops_messages_and_reports_each_loss(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    fake_loop = FakeLoop(turns=60)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(fake_loop, target.pid, off_cpu=True) as running:
            totals = running.run()
    messages = receiver.messages()
    assert totals.messages == len(messages) - 1
    assert totals.lost_messages == totals.lost_samples == {LossReason.QUEUE_FULL: 60 - totals.messages}
    assert decode_correlations(messages) == sent_counts(fake_loop)
    assert len(fake_loop.events(Reported)) == 60


def test_agent_registers_with_the_socket_that_replaces_a_lost_one(workshop: TargetBuilder, tmp_path: Path) -> None:
    first, second = DatagramReceiver(tmp_path / "first"), DatagramReceiver(tmp_path / "second")

    def on_wait(turn: int) -> None:
        if turn == 2:
            first.close()
        elif turn == 8:
            target.do(storage("shop", "", second.path))

    fake_loop = FakeLoop(turns=10, on_wait=on_wait)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, first.path)
        with agent(fake_loop, target.pid, period_s=0.1, off_cpu=True) as running:
            totals = running.run()
    messages = second.messages()
    second.close()
    assert totals.lost_samples == {LossReason.SOCKET_GONE: 6}
    assert is_registration(messages[0])
    assert decode_correlations(messages).total() == 2, "also those of the turn in which it was noticed"
    assert totals.samples == 4
    assert [event.socket_path for event in fake_loop.events(Registered)] == [first.path, second.path]


def test_a_process_that_publishes_later_is_followed_from_then_on(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    def on_wait(turn: int) -> None:
        if turn == 3:
            target.do(storage("shop", "", receiver.path))

    fake_loop = FakeLoop(turns=6, on_wait=on_wait)
    with run_inspected(workshop) as target:
        target.do(f"load {workshop.elastic()}", "loaded")
        target.do("record " + record_bytes().hex())
        with agent(fake_loop, target.pid, period_s=0.1, off_cpu=True) as running:
            running.run()
    assert [type(event) for event in fake_loop.recorded[:3]] == [NotReady, Followed, Registered]
    (not_ready,) = fake_loop.events(NotReady)
    assert [reason.code for reason in not_ready.reasons] == ["storage-null"]
    assert decode_correlations(receiver.messages()).total() == 2, (
        "it is followed from the fourth turn, sampled from the fifth"
    )


def test_agent_stops_following_a_withdrawn_storage_until_there_is_another(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    def on_wait(turn: int) -> None:
        if turn in (2, 4):
            target.do("storage null" if turn == 2 else storage("shop", "", receiver.path))

    fake_loop = FakeLoop(turns=6, on_wait=on_wait)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(fake_loop, target.pid, period_s=0.1, off_cpu=True) as running:
            totals = running.run()
    assert [type(event) for event in fake_loop.recorded if not isinstance(event, Reported)] == [
        Followed,
        Registered,
        NotReady,
        Followed,
        Registered,
    ]
    assert totals.lost_samples == {LossReason.UNPUBLISHED: 1}
    assert totals.processes == 1
    assert decode_correlations(receiver.messages()) == sent_counts(fake_loop)


def test_a_registration_that_is_lost_is_sent_again_a_second_later(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    def on_wait(turn: int) -> None:
        if turn == 2:
            assert len(receiver.messages()) > 1

    fake_loop = FakeLoop(turns=5, on_wait=on_wait)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(FakeLoop(turns=60), target.pid, off_cpu=True, send_registrations=False) as other:
            other.run()
        with agent(fake_loop, target.pid, off_cpu=True) as running:
            totals = running.run()
    assert [event.loss for event in fake_loop.events(Registered)] == [LossReason.QUEUE_FULL, None]
    assert (totals.registrations, totals.lost_registrations) == (1, 1)
    assert is_registration(receiver.messages()[0])


def test_agent_drops_processes_as_they_end_and_finishes_with_the_last(workshop: TargetBuilder, tmp_path: Path) -> None:
    def on_wait(turn: int) -> None:
        if turn == 2:
            first.close_stdin()
            assert first.finish() == 0
        elif turn == 4:
            os.kill(second.pid, signal.SIGKILL)
            os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)

    fake_loop = FakeLoop(turns=50, on_wait=on_wait)
    with (
        DatagramReceiver(tmp_path / "a") as one,
        DatagramReceiver(tmp_path / "b") as two,
        run_inspected(workshop) as first,
        run_inspected(workshop) as second,
    ):
        publish_transaction(first, workshop, one.path)
        publish_transaction(second, workshop, two.path)
        with agent(fake_loop, first.pid, second.pid, first.pid, off_cpu=True, report_period_s=60) as running:
            totals = running.run()
        assert one.messages()[1:] == [], "its path leads through the process, which was gone"
    assert [event.pid for event in fake_loop.events(Ended)] == [first.pid, second.pid]
    assert totals.processes == 2
    assert totals.samples + totals.lost_samples[LossReason.SOCKET_GONE] == 2 + 4


def test_process_held_by_another_tracer_is_reported_busy_and_sampled_later(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with Target(sys.executable, "-c", HOLD_PROGRAM, str(target.pid), env={"PYTHONPATH": import_path()}) as other:
            other.line("holding")

            def on_wait(turn: int) -> None:
                if turn == 3:
                    other.tell("go on")
                    other.line("let go")

            fake_loop = FakeLoop(turns=5, on_wait=on_wait)
            with agent(fake_loop, target.pid, off_cpu=True) as running:
                totals = running.run()
    assert totals.busy_reads == 3
    assert len(fake_loop.events(Busy)) == 1
    assert str(other.pid) in fake_loop.events(Busy)[0].text
    assert decode_correlations(receiver.messages()).total() == 2


def test_a_process_that_becomes_another_program_is_given_up(
    workshop: TargetBuilder, receiver: DatagramReceiver
) -> None:
    def on_wait(turn: int) -> None:
        if turn == 2:
            target.tell("exec 0")
            target.lines(2, "ready")

    fake_loop = FakeLoop(turns=50, on_wait=on_wait)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(fake_loop, target.pid, off_cpu=True) as running:
            totals = running.run()
    (ended,) = fake_loop.events(Ended)
    assert "does not run Python" in ended.text
    assert (totals.processes, totals.given_up) == (1, 1)
    assert decode_correlations(receiver.messages()).total() == totals.samples == 2


def test_a_stall_is_not_made_up_for(workshop: TargetBuilder, receiver: DatagramReceiver) -> None:
    def on_wait(turn: int) -> None:
        if turn == 1:
            fake_loop.now += 3.0

    fake_loop = FakeLoop(turns=3, on_wait=on_wait)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(fake_loop, target.pid, off_cpu=True) as running:
            totals = running.run()
    assert totals.samples == 3
    assert totals.missed == 6


def test_the_duration_ends_the_work(workshop: TargetBuilder, receiver: DatagramReceiver) -> None:
    fake_loop = FakeLoop(turns=50)
    with run_inspected(workshop) as target:
        publish_transaction(target, workshop, receiver.path)
        with agent(fake_loop, target.pid, off_cpu=True, duration_s=1.75) as running:
            assert running.run().samples == 4
    assert fake_loop.now == 1001.75
