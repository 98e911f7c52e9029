"""The doctor calls no failure what it sees to work, such as ways that only the service has, and nothing else good."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import UNREACHABLE_URL, clean_environment, splunk_profiler
from connect_proxy import ConnectProxy
from pid_namespace import skip_without_namespace
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import end_with_exporters

ON = {"SPLUNK_PROFILER_ENABLED": "true"}
_UNSEEN = {**ON, "SPLUNK_PROFILER_WALKER": "portable"}  # with it a profiler that is not seen is no failure
_NAME = "collector.invalid"  # has an address in the proxy only
_SERVICE_NAME = "examined"  # or the first records wait 5 s for a name
_OTHER_NETWORK = ("unshare", "--user", "--map-root-user", "--net")
_OTHER_FILES = ("unshare", "--user", "--map-root-user", "--mount")
_AUTOMATIC = "import splunk_profiler; splunk_profiler.start()"
_OVERWRITING = """
import ctypes
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])  # of the environment
ctypes.memset(start, 0, end - start)
if sys.argv[1:]:
    ctypes.memmove(start, sys.argv[1].encode(), len(sys.argv[1]))
"""
_STARTING = """
import splunk_profiler
splunk_profiler.start(splunk_profiler.Config(enabled=True, logs_endpoint=sys.argv[1], export_interval_ms=50))
"""


@contextmanager
def _service(program: str, *arguments: str, env: dict[str, str]) -> Iterator[Target]:
    """Run a program that ends when its standard input does."""
    program = f"import sys\n{program}\nprint('ready', flush=True)\nsys.stdin.read()"
    with Target(sys.executable, "-c", program, *arguments, env=env) as target:
        target.line("ready")
        yield target
        end_with_exporters(target)


@contextmanager
def _idle_process(env: dict[str, str], *prefix: str) -> Iterator[int]:
    """Run a Python without the profiler, by the command `prefix`, and yield its process id."""
    command = [*prefix, sys.executable, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"\n")


def _examine(*options: str | int, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    ended = splunk_profiler("doctor", "--json", *map(str, options), env=env)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def _findings(data: dict[str, Any], verdict: str) -> dict[str, str]:
    return {each["subject"]: each["fact"] for each in data["findings"] if each["verdict"] == verdict}


@pytest.mark.parametrize("title", [(), ("er --queues=fast",)], ids=["short title", "long title"])
def test_process_that_overwrote_its_environment_is_not_called_off(title: tuple[str, ...]) -> None:
    program = f"{_AUTOMATIC}\n{_OVERWRITING}"
    with (
        Receiver() as receiver,
        _service(program, *title, env=profiling_settings(receiver.url, OTEL_SERVICE_NAME=_SERVICE_NAME)) as target,
    ):
        receiver.record()
        code, data = _examine("--pid", target.pid)
        shown = splunk_profiler("doctor", "--pid", str(target.pid)).stdout
    assert (code, _findings(data, "failure")) == (0, {})
    assert "has overwritten the environment" in _findings(data, "warning")["settings"]
    assert data["records"]["counters"]["delivered"] > 0
    assert (data["settings"], data["endpoint"]) == ([], None)
    assert "Settings in effect" not in shown
    assert "Samples would flow; see what is marked with ! above." in shown


def test_process_that_code_switched_on_is_not_called_off() -> None:
    with Receiver() as receiver, _service(_STARTING, receiver.url, env={"OTEL_SERVICE_NAME": _SERVICE_NAME}) as target:
        receiver.record()
        code, data = _examine("--pid", target.pid)
    assert (code, _findings(data, "failure")) == (0, {})
    assert "its code has switched it on" in _findings(data, "warning")["settings"]
    assert data["settings"] == []


def test_overwritten_environment_without_the_profiler_is_a_failure() -> None:
    with _service(_OVERWRITING, env={}) as target:
        code, data = _examine("--pid", target.pid)
    assert (code, data["samples_would_flow"]) == (1, False)
    assert "has overwritten the environment" in _findings(data, "failure")["settings"]
    assert data["settings"] == []


def test_threads_of_the_profiler_are_evidence_without_settings() -> None:
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url), "SPLUNK_PROFILER_EXPORTER": "thread"}
        with _service(f"{_AUTOMATIC}\n{_OVERWRITING}", env=env) as target:
            code, data = _examine("--pid", target.pid)
    assert (code, _findings(data, "failure")) == (0, {})
    assert "its threads run (splunk-profiler" in _findings(data, "ok")["profiler"]
    assert "has overwritten the environment" in _findings(data, "warning")["settings"]


def test_process_that_is_named_like_the_profiler_is_not_running_it() -> None:
    renaming = "open('/proc/self/comm', 'w').write('splunk-profiler')"  # the name of our own command
    with _service(f"{renaming}\n{_OVERWRITING}", env={}) as target:
        code, data = _examine("--pid", target.pid)
    assert (code, [*_findings(data, "failure")]) == (1, ["settings"])


def test_process_whose_code_has_stopped_the_profiler_is_a_failure() -> None:
    with _service(f"{_STARTING}\nsplunk_profiler.stop()", UNREACHABLE_URL, env={}) as target:
        code, data = _examine("--pid", target.pid)
    assert code == 1
    assert "its code has switched it on" in _findings(data, "failure")["settings"]
    assert data["settings"] == []


def test_process_with_an_empty_environment_is_called_off() -> None:
    with _idle_process({}) as pid:
        code, data = _examine("--pid", pid, "--no-export")
    assert code == 1
    assert "SPLUNK_PROFILER_ENABLED is not set" in _findings(data, "failure")["switched off"]


def test_process_that_nothing_started_the_profiler_in_is_a_failure() -> None:
    connecting = "import socket, grpc; connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))"
    with Receiver() as receiver:
        env = profiling_settings(receiver.url)
        with _service(connecting, receiver.host, str(receiver.port), env=env) as target:
            code, data = _examine("--pid", target.pid)
    assert (code, [*_findings(data, "failure")]) == (1, ["profiler"])
    (finding,) = (each for each in data["findings"] if each["subject"] == "profiler")
    for way in ("splunk-profiler run --", "opentelemetry-instrument", "splunk_profiler.start()", "name a worker"):
        assert way in finding["remedy"]
    in_process = {each["subject"] for each in data["findings"] if each["section"] == "Process"}
    assert not in_process & {"exporter", "connection"}


def test_collector_that_only_a_proxy_reaches_is_no_failure() -> None:
    with Receiver() as receiver, ConnectProxy(_NAME, receiver.host, receiver.port) as proxy:
        env = {**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{_NAME}:4317", "http_proxy": proxy.url}
        code, data = _examine(env=env)
        assert receiver.records(1)
    assert (code, _findings(data, "failure")) == (0, {})
    assert f"{_NAME} has no address" in _findings(data, "warning")["name look-up"]
    assert "delivered after" in _findings(data, "ok")["test export"]


def test_service_that_delivers_by_its_own_proxy_is_no_failure() -> None:
    with Receiver() as receiver, ConnectProxy(_NAME, receiver.host, receiver.port) as proxy:
        env = profiling_settings(f"http://{_NAME}:4317", http_proxy=proxy.url, OTEL_SERVICE_NAME=_SERVICE_NAME)
        with _service(_AUTOMATIC, env=env) as target:
            receiver.record()
            code, data = _examine("--pid", target.pid)
    assert (code, _findings(data, "failure")) == (0, {})
    assert _findings(data, "warning").keys() >= {"name look-up", "test export"}
    assert "records of the process arrive" in _findings(data, "warning")["test export"]


def test_other_network_namespace_makes_failed_tries_warnings() -> None:
    skip_without_namespace("--net")
    env = clean_environment({**_UNSEEN, "OTEL_EXPORTER_OTLP_ENDPOINT": UNREACHABLE_URL})
    with _idle_process(env, *_OTHER_NETWORK) as pid:
        code, data = _examine("--pid", pid)
    assert (code, _findings(data, "failure")) == (0, {})
    for subject in ("connection", "test export"):
        assert "another network namespace" in _findings(data, "warning")[subject]


@pytest.mark.parametrize(
    ("setting", "subject"),
    [
        ({"SPLUNK_PROFILER_OUTPUT": "file:{}/profiles"}, "directory"),
        ({"SPLUNK_PROFILER_OUTPUT": "stream:{}/streams"}, "directory"),
        ({"SPLUNK_PROFILER_OUTPUT": "datadog:unix://{}/apm.socket"}, "connection"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "unix:{}/collector.sock"}, "connection"),
    ],
    ids=["profiles", "streams", "agent", "collector"],
)
def test_path_of_no_use_fails_in_another_network_namespace(
    setting: dict[str, str], subject: str, tmp_path: Path
) -> None:
    skip_without_namespace("--net")
    (tmp_path / "file").touch()
    env = clean_environment({**_UNSEEN, **{name: value.format(tmp_path / "file") for name, value in setting.items()}})
    with _idle_process(env, *_OTHER_NETWORK) as pid:
        code, data = _examine("--pid", pid, "--no-export")
    assert (code, [*_findings(data, "failure")]) == (1, [subject])


def test_path_of_no_use_is_a_warning_in_another_mount_namespace(tmp_path: Path) -> None:
    skip_without_namespace("--mount")
    (tmp_path / "file").touch()
    env = clean_environment({**_UNSEEN, "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}/file/profiles"})
    with _idle_process(env, *_OTHER_FILES) as pid:
        code, data = _examine("--pid", pid, "--no-export")
    assert (code, _findings(data, "failure")) == (0, {})
    assert "another mount namespace" in _findings(data, "warning")["directory"]


def test_port_without_a_listener_fails_in_another_mount_namespace() -> None:
    skip_without_namespace("--mount")
    env = clean_environment({**_UNSEEN, "OTEL_EXPORTER_OTLP_ENDPOINT": UNREACHABLE_URL})
    with _idle_process(env, *_OTHER_FILES) as pid:
        code, data = _examine("--pid", pid, "--no-export")
    assert (code, [*_findings(data, "failure")]) == (1, ["connection"])


def test_setting_that_is_wrong_fails_in_another_network_namespace() -> None:
    skip_without_namespace("--net")
    env = clean_environment({**_UNSEEN, "SPLUNK_PROFILER_OUTPUT": "datadog:htps://agent"})
    with _idle_process(env, *_OTHER_NETWORK) as pid:
        code, data = _examine("--pid", pid)
    assert code == 1
    assert "is not usable" in _findings(data, "failure")["destination"]
