"""Hosts that fork, daemonise, close descriptors, are killed or confined: they are not hurt, and no exporter is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from target_process import TESTS, Target

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import find_exporters, wait_for_end

_PROGRAM = [sys.executable, str(TESTS / "targets" / "exporter_host.py")]


@contextmanager
def _hosting(scenario: str, folder: Path | None = None, before: list[str] | None = None) -> Iterator[Target]:
    """Run a scenario; the exporters that it names or has started end with it."""
    env = {} if folder is None else {"LC_ECHO_FOLDER": str(folder)}
    with Target(*(before or []), *_PROGRAM, scenario, env=env) as host:
        yield host
    named = [int(pid) for pid in re.findall(r"^exporter (\d+)$", host.output, re.MULTILINE)]
    for pid in [*named, *find_exporters(host.pid)]:
        wait_for_end(pid)


def _noted(folder: Path) -> list[str]:
    """Return what the sessions got, each process's lines in one text."""
    return sorted(path.read_text("utf-8") for path in folder.iterdir())


def test_wait_and_sigchld_of_the_host_never_see_the_exporter() -> None:
    with _hosting("wait") as host:
        # SIGCHLD came for the program and the child of multiprocessing.
        assert host.json("waited") == ["no child", "no child", 0, 2]
        assert host.json("closed") is True
        assert host.finish() == 0


def test_thread_that_waits_for_any_child_never_sees_an_exporter_start() -> None:
    with _hosting("waiting thread") as host:
        assert host.json("seen") == [[host.json("child"), 0]]
        assert host.json("tries") > 1
        assert host.json("closed") is True
        assert host.finish() == 0
        assert len({*host.lines(5, "exporter")}) == 5


def test_reader_of_the_output_does_not_wait_for_the_exporter() -> None:
    with _hosting("exit") as host:
        exporter = host.json("exporter")
        host.final_output()
        assert find_exporters(host.pid) == [exporter]
        os.kill(exporter, signal.SIGCONT)


def test_host_that_closes_descriptors_gets_no_byte_in_its_own() -> None:
    with _hosting("close descriptors") as host:
        assert host.json("reused") > 0
        assert not any(host.json("contents"))
        assert host.finish() == 0
        assert len(host.lines(2, "exporter")) == 2


def test_application_that_takes_descriptors_at_any_moment_keeps_its_own() -> None:
    with Target("taken_descriptors.py") as application:
        assert application.finish() == 0, application.output
        assert application.json("tries") > 50
        assert application.json("harmed") == []


def test_daemon_goes_on_sending(tmp_path: Path) -> None:
    with _hosting("daemon", tmp_path) as host:
        host.lines(2, "exporter")
        wait_for_end(host.json("daemon"))
    assert "daemon" in _noted(tmp_path)


@pytest.mark.parametrize("scenario", ["os.fork", "fork of C code"])
def test_forked_children_share_the_exporter_of_their_parent(scenario: str, tmp_path: Path) -> None:
    with _hosting(scenario, tmp_path) as host:
        assert host.json("statuses") == [0] * 50
        assert host.json("connected") == host.json("exporter")
        assert host.finish() == 0
    assert _noted(tmp_path) == sorted(["parent", *(f"child {number}" for number in range(50))])


def test_killed_host_leaves_no_exporter_to_a_child_of_c_code() -> None:
    with _hosting("child of C code") as host:
        exporter, child = host.json("exporter"), host.json("child")
        host.signal(signal.SIGKILL)
        wait_for_end(exporter)
        os.kill(child, 0)  # it lives


def test_child_that_ends_before_its_parents_exporter_runs_loses_nothing(tmp_path: Path) -> None:
    with _hosting("late exporter", tmp_path) as host:
        assert host.json("child") == [True, False]
        assert host.finish() == 0
    assert _noted(tmp_path) == ["last words", "parent"]


def test_child_forked_beside_a_stopped_exporter_shares_it_afterwards() -> None:
    with _hosting("stopped exporter") as host:
        assert "does not answer" in host.line("silence")
        assert host.json("taken") == [True, False, True]
        assert host.json("connected") == host.json("exporter")
        assert host.json("status") == 0
        assert host.finish() == 0


def test_killed_host_loses_nothing_that_it_has_sent(tmp_path: Path) -> None:
    with _hosting("serve", tmp_path) as host:
        host.tell("last words")
        host.line("sent")
        host.signal(signal.SIGKILL)
        host.finish()
    assert _noted(tmp_path) == ["last words"]


def test_exporter_and_host_killed_together_leave_nothing() -> None:
    with _hosting("serve") as host:
        exporter = host.json("exporter")
        os.kill(exporter, signal.SIGKILL)
        host.signal(signal.SIGKILL)
        host.finish()


def test_exporter_ignores_signals_to_its_host(tmp_path: Path) -> None:
    with _hosting("serve", tmp_path) as host:
        exporter = host.json("exporter")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(exporter, number)
        host.tell("still here")
        host.line("sent")
        os.killpg(host.pid, signal.SIGHUP)
        host.finish()
    assert _noted(tmp_path) == ["still here"]


def test_host_under_gevent_is_served(tmp_path: Path) -> None:
    pytest.importorskip("gevent", reason="gevent is not installed")
    with _hosting("gevent", tmp_path) as host:
        host.tell("from a greenlet")
        host.line("sent")
        host.close_stdin()
        assert host.json("closed") is True
        assert host.finish() == 0
    assert _noted(tmp_path) == ["from a greenlet"]


def test_host_without_proc_is_served(tmp_path: Path) -> None:
    command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    _skip_if_refused([*command, "true"], "a mount over /proc")
    with _hosting("serve", tmp_path, command) as host:
        host.tell("without a list")
        host.line("sent")
        host.close_stdin()
        assert host.json("closed") is True
    assert _noted(tmp_path) == ["without a list"]


def test_host_in_an_empty_chroot_is_told_why_there_is_no_exporter() -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    with _hosting("chroot") as host:
        assert "__main__.py is no file" in host.json("obstacle")


def test_host_as_process_1_and_its_children_start_no_exporter() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    _skip_if_refused([*command, "true"], "a namespace of process ids")
    with _hosting("process 1", before=command) as host:
        assert host.json("pid") == 1
        for word in ("obstacle", "child", "worker"):
            assert "process 1" in host.json(word)
        assert host.json("left") == "no child"


def test_child_of_another_user_gets_no_access_to_the_exporter() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with _hosting("another user") as host:
        first = host.json("exporter")
        assert host.json("same user") is True
        other = host.json("other user")
        assert other != first
        assert host.finish() == 0
    if isinstance(other, int):
        wait_for_end(other)


def _skip_if_refused(command: list[str], what: str) -> None:
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"the kernel refuses {what}")
