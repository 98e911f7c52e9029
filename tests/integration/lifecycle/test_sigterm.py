"""SIGTERM ends a process as it would without the profiler, after what was gathered last has been sent."""

from __future__ import annotations

import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from destinations import Destination
from profile_files import functions, wait_until, written_to
from receiver_process import Receiver
from target_process import TREE, Target, profiling_settings

pytestmark = [
    pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built"),
    pytest.mark.usefixtures("shared_exporter"),
]

_LATER = {"SPLUNK_PROFILER_EXPORT_INTERVAL": "600000"}  # than the test: all that arrives was sent at the end
_MARK = "work_in_span_07"


def _to_files(directory: Path) -> dict[str, str]:
    return {**written_to(directory), **_LATER}


def _is_marked(directory: Path, pid: int) -> bool:
    return any(_MARK in name for name in functions(directory, pid))


def _terminate(target: Target, times: int = 1) -> None:
    target.line("ready")
    for _ in range(times):
        target.signal(signal.SIGTERM)
    assert target.finish() == -signal.SIGTERM, target.output


def _end_by_itself(state: str, directory: Path) -> int:
    """Let a process send itself SIGTERM, after which it may run no code; return its pid."""
    with Target("terminated.py", state, env=_to_files(directory)) as target:
        target.line("ready")
        target.tell("go")
        assert target.finish() == -signal.SIGTERM, target.output
        assert "survived" not in target.final_output()
        return target.pid


def test_sigterm_sends_the_last_interval_however_often_it_comes(destination: Destination) -> None:
    with Target("terminated.py", "waiting", env=destination.settings) as target:
        _terminate(target, times=20)
        wait_until(lambda: any(name.endswith(f".{_MARK}") for name in destination.functions(target.pid)))


def test_sigterm_sends_the_last_interval_of_the_portable_walker(tmp_path: Path) -> None:
    with Target(
        "terminated.py", "waiting", env={**_to_files(tmp_path), "SPLUNK_PROFILER_WALKER": "portable"}
    ) as target:
        _terminate(target)
        wait_until(lambda: _is_marked(tmp_path, target.pid))


def test_sigterm_sends_what_is_gathered_while_the_main_thread_computes(tmp_path: Path) -> None:
    with Target("terminated.py", "busy", env=_to_files(tmp_path)) as target:
        _terminate(target)
        wait_until(lambda: _is_marked(tmp_path, target.pid))


@pytest.mark.parametrize("state", ["waiting", "stuck"])
def test_sigterm_ends_a_process_in_time_although_the_collector_hangs(state: str) -> None:
    with Receiver(mode="hang") as receiver:
        with Target("terminated.py", state, env=profiling_settings(receiver.url, 5, **_LATER)) as target:
            _terminate(target)
        receiver.switch("ok")


@pytest.mark.parametrize("state", ["raising", "killing", "restoring"])
def test_a_process_that_sends_itself_sigterm_runs_no_code_after_it(state: str, tmp_path: Path) -> None:
    pid = _end_by_itself(state, tmp_path)
    wait_until(lambda: _is_marked(tmp_path, pid))


def test_main_thread_that_blocks_sigterm_ends_where_it_unblocks_it(tmp_path: Path) -> None:
    with Target("terminated.py", "blocking", env=_to_files(tmp_path)) as target:
        target.line("blocked")
        target.signal(signal.SIGTERM)
        target.tell("go")
        assert target.finish() == -signal.SIGTERM, target.output
        assert "survived" not in target.final_output()
    wait_until(lambda: _is_marked(tmp_path, target.pid))


def test_sigterm_sends_what_is_gathered_while_the_main_thread_stops_it(tmp_path: Path) -> None:
    with Target("terminated.py", "stopping", env=_to_files(tmp_path)) as target:
        _terminate(target)
        wait_until(lambda: _is_marked(tmp_path, target.pid))


def test_sigterm_ends_a_process_that_can_make_no_more_threads(tmp_path: Path) -> None:
    _end_by_itself("threadless", tmp_path)


def test_sigterm_ends_a_process_that_gets_no_timer(tmp_path: Path) -> None:
    with Target("terminated.py", "timerless", env=_to_files(tmp_path)) as target:
        target.line("ready")
        target.tell("go")
        assert target.json("child") == -signal.SIGTERM
        assert target.finish() == 0, target.output
        assert "survived" not in target.final_output()


def test_child_that_is_forked_before_the_end_of_its_parent_goes_on(tmp_path: Path) -> None:
    with Target("terminated.py", "forking", env=_to_files(tmp_path)) as target:
        assert target.json("child") != target.pid
        target.tell("go")
        target.line("goes on")
        assert target.finish() == -signal.SIGTERM, target.output


def test_sigterm_ends_a_process_that_ignores_it_afterwards(tmp_path: Path) -> None:
    with Target("terminated.py", "changing", env=_to_files(tmp_path)) as target:
        assert target.finish() == -signal.SIGTERM, target.output


@pytest.mark.parametrize("state", ["raising", "killing", "restoring"])
def test_a_process_that_sends_itself_sigterm_waits_for_its_exporter(state: str, tmp_path: Path) -> None:
    from exporter_processes import find_exporters  # noqa: PLC0415  # it needs the extension

    with Target("terminated.py", state, env={**_to_files(tmp_path), TREE: ""}) as target:
        target.line("ready")
        wait_until(lambda: bool(find_exporters(target.pid)))
        (exporter,) = find_exporters(target.pid)
        os.kill(exporter, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            target.tell("go")
            assert target.finish() == -signal.SIGTERM, target.output
            assert time.monotonic() - began_s > 1
        finally:
            os.kill(exporter, signal.SIGCONT)
    wait_until(lambda: _is_marked(tmp_path, target.pid))


@pytest.mark.parametrize("state", ["thread_raising", "thread_killing"])
def test_a_thread_that_sends_its_process_sigterm_runs_no_code_after_it(state: str, tmp_path: Path) -> None:
    _end_by_itself(state, tmp_path)


def test_sigterm_ends_a_process_whose_profiler_was_stopped(tmp_path: Path) -> None:
    _end_by_itself("stopped", tmp_path)


def test_sigterm_stays_ignored_where_the_application_ignores_it(tmp_path: Path) -> None:
    with Target("terminated.py", "ignoring", env=_to_files(tmp_path)) as target:
        assert target.json("goes on")
        assert target.finish() == 0, target.output


def test_sigterm_ends_a_forked_child_that_did_nothing_else(tmp_path: Path) -> None:
    with Target("terminated.py", "forked", env=_to_files(tmp_path)) as target:
        assert target.json("child") == -signal.SIGTERM
        assert target.finish() == 0, target.output


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_terminated_child_of_multiprocessing_sends_its_last_interval(method: str, tmp_path: Path) -> None:
    with Target("terminated.py", f"multiprocessing_{method}", env=_to_files(tmp_path)) as target:
        child = target.json("ready")
        target.tell("go")
        assert target.json("child") == -signal.SIGTERM
        assert target.finish() == 0, target.output
        wait_until(lambda: _is_marked(tmp_path, child))
