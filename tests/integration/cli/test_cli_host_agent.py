"""``splunk-profiler host-agent``, as a user runs it: beside processes that publish and read what it sends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from agent_process import CorrelationMessage, DatagramReceiver, decode_correlations, is_registration
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment, splunk_profiler
from inspected_process import InspectedProcess, TargetBuilder, record_bytes, run_inspected
from publishing_target import socket_folder
from target_process import Target
from unreadable_processes import assert_unreadable_processes_are_one_line

from splunk_profiler.cli.host_agent import host_agent

NEEDS_THE_PUBLISHER = "the native publisher is not built for this interpreter"


class Agent:
    """A running agent whose events are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.events: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(self, event: str, count: int = 1, **facts: Any) -> dict[str, Any]:
        """Read on until there are `count` such events more; the last of them."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found: dict[str, Any] = json.loads(line)
            self.events.append(found)
            if {"event": event, **facts}.items() <= found.items():
                count -= 1
                if not count:
                    return found
        raise AssertionError(f"it ended with {self._process.wait(DEADLINE_S)} before {event} {facts}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def finish(self) -> int:
        """Read to the end; the exit code. The last event is the totals, and agrees with the others."""
        self.until("totals")
        assert self._process.communicate(timeout=DEADLINE_S) == ("", "")
        totals = self.events[-1]
        for kind, messages, samples in (("sent", "messages", "samples"), ("lost", "lost_messages", "lost_samples")):
            assert totals[messages] == len(self.of(kind))
            assert totals[samples] == sum(event["count"] for event in self.of(kind))
        assert totals["registrations"] == len(self.of("registered"))
        return self._process.returncode

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in kinds]

    def sent(self, path: str) -> Counter[CorrelationMessage]:
        """The counts of what it says that it sent to that socket."""
        found: Counter[CorrelationMessage] = Counter()
        for event in self.of("sent"):
            if event["socket_path"] == path:
                found[CorrelationMessage(event["trace_id"], event["transaction_id"], event["stack_trace_id"])] += event[
                    "count"
                ]
        return found


@contextmanager
def following(*arguments: str | int) -> Iterator[Agent]:
    """An agent that prints JSON; it has ended when the block has."""
    command = [*COMMAND, "host-agent", "--json", *map(str, arguments)]
    with subprocess.Popen(
        command, env=clean_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Agent(process)
        finally:
            process.kill()


@contextmanager
def correlated_target(*orders: str) -> Iterator[Target]:
    """A Python process that publishes and reads its messages."""
    pytest.importorskip("splunk_profiler._context", reason=NEEDS_THE_PUBLISHER)
    with Target("correlated.py") as target:
        target.line("ready")
        for order in orders:
            target.tell(order)
        yield target


def received(target: Target, processes: int = 1) -> list[dict[str, Any]]:
    """Return the received messages, those of the children first."""
    target.tell("end")
    lines = [json.loads(line) for line in target.lines(processes, "received ")]
    assert target.finish() == 0
    return lines


def in_a_transaction(target: InspectedProcess, workshop: TargetBuilder, path: str) -> None:
    target.publish(workshop.elastic(), socket_path=path)
    target.do("record " + record_bytes().hex())


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ((), signal.SIGINT),
        (("--report-interval", "0.1"), signal.SIGTERM),
        (("--report-interval", "3600"), signal.SIGTERM),
    ],
)
def test_every_sample_is_received_or_reported_as_lost(options: tuple[str, ...], number: signal.Signals) -> None:
    with socket_folder() as folder, correlated_target(f"publish {folder}/s", "work 3") as target:
        target.line("working")
        with following(target.pid, "--rate", 100, *options) as agent:
            agent.until("registered")
            if "3600" not in options:
                agent.until("sent", 20)
            agent.signal(number)
            assert agent.finish() == 0
        (service,) = received(target)
    messages = [bytes.fromhex(message) for message in service["messages"]]
    assert is_registration(messages[0])
    assert decode_correlations(messages) == agent.sent(service["path"])
    assert len(messages) == 1 + len(agent.of("sent"))
    assert {event["trace_id"] for event in agent.of("sent", "lost")} <= set(service["traces"])
    assert all(event["stack_trace_id"] != "00" * 16 for event in agent.of("sent"))


def test_children_are_followed_each_with_its_own_socket() -> None:
    with socket_folder() as folder, correlated_target(f"publish {folder}/s", f"fork {folder}/1") as target:
        children = [int(target.line("child"))]
        with following(target.pid, "--children", "--rate", 100) as agent:
            agent.until("sent", pid=children[0])
            target.tell(f"fork {folder}/2")  # while the agent is at work
            children.append(int(target.lines(2, "child")[-1]))
            agent.until("registered", pid=children[1], socket_path=f"{folder}/2")
            agent.until("sent", 5, pid=children[1], socket_path=f"{folder}/2")
            agent.signal(signal.SIGINT)
            assert agent.finish() == 0
        services = received(target, 3)
    assert [service["pid"] for service in services] == [*children, target.pid]
    for service in services:
        messages = [bytes.fromhex(message) for message in service["messages"]]
        assert is_registration(messages[0])
        assert decode_correlations(messages) == agent.sent(service["path"])
    for service in services[:2]:
        ours = [event for event in agent.of("sent") if event["socket_path"] == service["path"]]
        assert ours
        assert {event["pid"] for event in ours} == {service["pid"]}
        assert {event["trace_id"] for event in ours} == set(service["traces"])


def test_a_process_that_publishes_long_after_its_start_is_found() -> None:
    with socket_folder() as folder, correlated_target() as target:
        with following(target.pid, "--rate", 50) as agent:
            assert [one["code"] for one in agent.until("unseen")["reasons"]] == ["library-not-loaded"]
            target.tell(f"publish {folder}/s")
            target.tell("work 1")
            agent.until("registered", pid=target.pid)
            agent.until("sent", 3)
            agent.signal(signal.SIGTERM)
            assert agent.finish() == 0
        (service,) = received(target)
    assert decode_correlations([bytes.fromhex(message) for message in service["messages"]]) == agent.sent(
        service["path"]
    )


def test_agents_side_by_side_after_a_killed_one_log_all_that_they_send() -> None:
    with socket_folder() as folder, correlated_target(f"publish {folder}/s", "work 2") as target:
        target.line("working")
        with following(target.pid, "--rate", 50) as killed:
            killed.until("sent", 3)
        with following(target.pid, "--rate", 50) as one, following(target.pid, "--rate", 40) as other:
            for agent in (one, other):
                agent.until("sent", 10)
            for agent in (one, other):
                agent.signal(signal.SIGINT)
                assert agent.finish() == 0
        (service,) = received(target)
    found = decode_correlations([bytes.fromhex(message) for message in service["messages"]])
    known = one.sent(service["path"]) + other.sent(service["path"])
    assert found - known >= killed.sent(service["path"]), (
        "of the one that was killed, more may have been sent than told"
    )
    assert known <= found


def test_the_duration_ends_it_and_the_options_of_the_registration_are_sent(
    workshop: TargetBuilder, tmp_path: Path
) -> None:
    options = ("--duration", "0.3", "--host-id", "", "--registration-minor", "2", "--samples-delay", "5000")
    with run_inspected(workshop) as target, DatagramReceiver(tmp_path / "s") as receiver:
        in_a_transaction(target, workshop, receiver.path)
        with following(target.pid, "--off-cpu", "--rate", "10", *options) as agent:
            assert agent.finish() == 0
        messages = receiver.messages()
    assert messages[0] == bytes.fromhex("020002008813000000000000")
    assert decode_correlations(messages) == agent.sent(receiver.path)
    assert agent.events[-1]["samples"] >= 1


def test_without_registering_the_first_message_is_a_correlation(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target, DatagramReceiver(tmp_path / "s") as receiver:
        in_a_transaction(target, workshop, receiver.path)
        with following(target.pid, "--off-cpu", "--no-register", "--duration", "0.1") as agent:
            assert agent.finish() == 0
        assert not is_registration(receiver.messages()[0])


def test_it_ends_with_the_last_process(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target, DatagramReceiver(tmp_path / "s") as receiver:
        in_a_transaction(target, workshop, receiver.path)
        with following(target.pid, "--off-cpu") as agent:
            agent.until("sent")
            target.close_stdin()
            assert target.finish() == 0
            assert "ended" in agent.until("ended", pid=target.pid)["text"]
            assert agent.finish() == 0


def test_lines_for_a_person_say_what_was_sent_and_what_was_lost(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target, DatagramReceiver(tmp_path / "s") as receiver:
        in_a_transaction(target, workshop, receiver.path)
        target.do("hold 1", "started")
        receiver.fill(2)  # room for the registration and one of two samples
        done = splunk_profiler(
            "host-agent", str(target.pid), "--off-cpu", "--rate", "1", "--duration", "0.1", env={"NO_COLOR": "1"}
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert f"followed     inspected: service shop, socket {receiver.path}" in lines[0]
    assert "registered   samples within 100 ms, host.id (none)" in lines[1]
    assert f"sent         trace {'11' * 16}  transaction {'33' * 8}  1 at " in lines[2]
    assert f"lost         trace {'01' * 16}  transaction {'01' * 8}  1 at " in lines[3]
    assert lines[3].endswith("  queue-full")
    assert [line.split() for line in lines[5:]] == [
        ["processes", "followed", "1"],
        ["registrations", "sent", "1"],
        ["messages", "sent", "1"],
        ["samples", "sent", "1"],
        ["samples", "lost,", "queue-full", "1"],
    ]


def test_host_agent_on_a_process_without_data_exits_1_with_the_reason() -> None:
    with Target(sys.executable, "-c", "print('ready'); input()") as target:
        target.line("ready")
        done = splunk_profiler("host-agent", str(target.pid), "--duration", "0.1")
    assert done.returncode == 1
    assert "[library-not-loaded]" in done.stdout


def test_errors_are_one_line_and_exit_code_1(workshop: TargetBuilder) -> None:
    assert_unreadable_processes_are_one_line("host-agent", workshop)


def test_a_supervisor_that_runs_no_python_is_waited_with_for_children(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        with following(target.pid, "--children", "--duration", "0.1") as agent:
            assert agent.finish() == 1
        with following(target.pid, "--children") as agent:
            assert "does not run Python" in agent.until("skipped")["text"]
            target.close_stdin()
            assert target.finish() == 0
            assert agent.finish() == 1
        assert agent.of("ended", "unseen", "followed") == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x"],
        ["0"],
        [str(os.getpid()), "--rate", "0"],
        [str(os.getpid()), "--rate", "nan"],
        [str(os.getpid()), "--duration", "0"],
        [str(os.getpid()), "--samples-delay", "-1"],
    ],
)
def test_wrong_usage_gives_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError) as raised:
        host_agent.make_context("host-agent", arguments)
    assert raised.value.exit_code == 2
