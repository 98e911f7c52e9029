"""Publishing in processes of their own: forks, ends, and many threads that start and stop it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from target_process import TESTS, Target, environment

pytest.importorskip("splunk_profiler._context")

_CHILDREN = 8
_ELASTIC = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION"


@pytest.fixture
def settings() -> Iterator[dict[str, str]]:
    """Both ABIs are published, without sampling, and the socket has a directory of its own."""
    with TemporaryDirectory(prefix="s") as directory:
        yield {
            f"{_ELASTIC}_ENABLED": "true",
            f"{_ELASTIC}_SOCKET_DIR": directory,
            "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
            "OTEL_SERVICE_NAME": "published",
            "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), environment()["PYTHONPATH"]]),
        }


def sockets(settings: dict[str, str]) -> set[str]:
    return {str(path) for path in Path(settings[f"{_ELASTIC}_SOCKET_DIR"]).iterdir()}


def assert_is_right(state: dict[str, Any]) -> str:
    """It shows its own spans, and names a socket that it has open; that socket's path."""
    assert state["right"]
    assert state["socket"]
    name, environment, path = state["storage"]
    assert (name, environment) == ("published", "test")
    assert state["sockets_open"] == [path]
    assert f"-{state['pid']}-" in path
    return str(path)


@pytest.mark.parametrize("sampling", ["false", "true"])
def test_forked_children_publish_as_themselves_and_leave_the_parent_alone(
    settings: dict[str, str], sampling: str
) -> None:
    env = {
        **settings,
        "SPLUNK_PROFILER_ENABLED": sampling,
        "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9",
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10",
    }
    with Target("publishing_life.py", "fork", str(_CHILDREN), env=env) as target:
        own = assert_is_right(target.json("state"))
        target.tell("fork")
        target.line("forked")
        children = [assert_is_right(state) for state in _states(target)]
        assert all(state["shows_its_span_at_once"] for state in _states(target))
        assert len({own, *children}) == _CHILDREN + 1
        assert sockets(settings) == {own, *children}
        target.tell("end the children")
        assert target.json("statuses") == [0] * _CHILDREN
        assert assert_is_right(target.json("after")) == own
        assert sockets(settings) == {own}
        target.tell("end")
        assert target.finish() == 0
        assert "Traceback" not in target.output
    assert not sockets(settings)


def test_a_fork_while_it_is_set_up_leaves_parent_and_child_visible(settings: dict[str, str]) -> None:
    env = {**settings, "OTEL_SERVICE_NAME": "", "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    with Target("publishing_life.py", "first_span", "50", env=env) as target:
        assert target.json("failed") == 0
        assert target.finish() == 0
        assert "Traceback" not in target.output
    assert all(f"-{target.pid}-" not in path for path in sockets(settings))


def test_child_of_c_code_that_is_not_sampled_becomes_visible(settings: dict[str, str]) -> None:
    env = {
        **settings,
        "OTEL_SERVICE_NAME": "",
        "SPLUNK_PROFILER_ENABLED": "true",
        "SPLUNK_PROFILER_WALKER": "portable",  # it cannot sample in such a child
        "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9",
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }
    with Target("publishing_life.py", "fork_in_c", env=env) as target:
        assert target.json("status", timeout_s=120) == 0
        assert target.finish() == 0


@pytest.mark.parametrize("mode", ["auto", "true"])
def test_fork_or_stop_right_after_the_first_message_leaves_both_right(settings: dict[str, str], mode: str) -> None:
    env = {
        **settings,
        f"{_ELASTIC}_ENABLED": mode,
        "SPLUNK_PROFILER_ENABLED": str(mode == "auto").lower(),
        "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9",
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }
    with Target("publishing_life.py", "first_message", "20", env=env) as target:
        assert target.json("failed", timeout_s=120) == 0
        assert target.finish() == 0
        assert "Traceback" not in target.output
    assert not sockets(settings)


def test_no_thread_waits_for_host_profilers_until_one_sends(settings: dict[str, str]) -> None:
    env = {
        **settings,
        f"{_ELASTIC}_ENABLED": "auto",
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "auto",
        "SPLUNK_PROFILER_ENABLED": "true",
        "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9",
    }
    names = ["MainThread", "sampler", "ticker"]
    with Target("publishing_life.py", "census", env=env) as target:
        assert target.json("idle") == [names, len(names)]
        assert target.json("told") == [sorted([*names, "correlator"]), len(names) + 2]
        assert target.finish() == 0
        assert "Traceback" not in target.output


def _states(target: Target) -> list[dict[str, Any]]:
    return [json.loads(line) for line in target.lines(_CHILDREN, "child")]


def test_many_threads_that_start_and_stop_it_leave_nothing_wrong_behind(settings: dict[str, str]) -> None:
    with Target("publishing_life.py", "threads", "8", env=settings) as target:
        assert target.json("failures", timeout_s=120) == []
        assert target.json("off") == {"storage": True, "sockets": [], "threads": 1}
        assert_is_right(target.json("again"))
        assert target.finish() == 0
        assert "Traceback" not in target.output
    assert not sockets(settings)


def test_socket_is_removed_at_exit_and_a_killed_ones_by_the_next_process(
    settings: dict[str, str],
) -> None:
    with Target("publishing_life.py", "serve", env=settings) as killed:
        left = assert_is_right(killed.json("state"))
        killed.signal(signal.SIGKILL)
        killed.finish()
    assert sockets(settings) == {left}
    with Target("publishing_life.py", "serve", env=settings) as target:
        own = assert_is_right(target.json("state"))
        deadline = time.monotonic() + 60
        while sockets(settings) != {own}:  # a thread of ours clears the directory
            assert time.monotonic() < deadline
        target.tell("end")
        assert target.finish() == 0
    assert not sockets(settings)
