"""``splunk-profiler inspect``, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment, splunk_profiler
from inspected_process import InspectedProcess, TargetBuilder, datagram_socket, labels, record_bytes, run_inspected
from target_process import Target
from unreadable_processes import assert_unreadable_processes_are_one_line

from splunk_profiler.cli.inspect import inspect


def publish(target: InspectedProcess, workshop: TargetBuilder, socket_path: str) -> None:
    target.publish(workshop.elastic(), workshop.labels(), socket_path=socket_path)
    target.do("record " + record_bytes().hex())
    target.do(labels((b"route", b"/checkout"), (b"long", b"v" * 60), (b"raw", b"\xff")))


def test_a_page_shows_values_reasons_and_the_verdict_in_100_columns(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target, datagram_socket(tmp_path) as path:
        publish(target, workshop, path)
        done = splunk_profiler("inspect", str(target.pid), env={"NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    for text in (
        f"Process {target.pid} (inspected), spec mode",
        "static TLS",
        f"1 1 01 {'11' * 16} {'22' * 8} {'33' * 8}",
        f"route=/checkout  long={'v' * 60}",
        "raw=\\xff",
        "accepted",
        "[label-value-cut]",
        "A host profiler would follow: elastic, custom-labels.",
    ):
        assert text in done.stdout


def test_json_has_the_same_and_strict_mode_has_the_values_of_hosts(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target, datagram_socket(tmp_path) as path:
        publish(target, workshop, path)
        done = splunk_profiler("inspect", str(target.pid), "--json", "--strict-host")
    found = json.loads(done.stdout)
    assert found["pid"] == target.pid
    assert found["mode"] == "strict-host"
    assert found["followed"] == ["elastic", "custom-labels"]
    assert [library["tls"] for library in found["libraries"]] == ["static", "static"]
    assert found["storage"]["socket_accepted"] is True
    assert found["storage"]["service_name"] == "shop"
    (thread,) = found["threads"]
    assert thread["correlation"]["trace_id"] == "11" * 16
    assert thread["labels"][1] == {"key": "long", "value": "v" * 53}
    assert [reason["code"] for reason in found["reasons"]] == ["label-value-cut"]


def test_watch_prints_a_line_for_each_read_until_ctrl_c(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target, datagram_socket(tmp_path) as path:
        publish(target, workshop, path)
        command = [*COMMAND, "inspect", str(target.pid), "--watch", "--json", "--interval", "0.01"]
        with subprocess.Popen(
            command, env=clean_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            lines = [json.loads(watch.stdout.readline()) for _ in range(5)]
            watch.send_signal(signal.SIGINT)
            lines += [json.loads(line) for line in watch.stdout]
            assert watch.stderr.read() == ""
            assert watch.wait(DEADLINE_S) == 0
        times = [line["time_unix_nano"] for line in lines]
        assert times == sorted(set(times))
        target.do("record null")


def test_a_watch_ends_with_the_process(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        command = [*COMMAND, "inspect", str(target.pid), "--watch", "--json", "--interval", "0.01"]
        with subprocess.Popen(
            command, env=clean_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watch:
            assert watch.stdout is not None
            watch.stdout.readline()
            target.close_stdin()
            assert target.finish() == 0
            assert watch.stderr is not None
            assert f"process {target.pid} ended" in watch.stderr.read()
            assert watch.wait(DEADLINE_S) == 1


def test_an_invisible_process_gives_exit_code_1_and_the_reason() -> None:
    with Target(sys.executable, "-c", "print('ready'); input()") as target:
        target.line("ready")
        done = splunk_profiler("inspect", str(target.pid))
    assert done.returncode == 1
    assert "A host profiler would see nothing of this process." in done.stdout
    assert "[library-not-loaded]" in done.stdout


def test_errors_are_one_line_and_exit_code_1(workshop: TargetBuilder) -> None:
    assert_unreadable_processes_are_one_line("inspect", workshop)


@pytest.mark.parametrize("arguments", [[], ["x"], ["0"], [str(os.getpid()), "--interval", "0"]])
def test_wrong_usage_gives_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError) as raised:
        inspect.make_context("inspect", arguments)
    assert raised.value.exit_code == 2
