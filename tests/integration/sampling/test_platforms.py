"""Systems and interpreters on which the native parts cannot be had.

macOS and Windows are this interpreter without what they lack (`targets/simulated_system.py`). Builds without a GIL are
real where there is one, and this interpreter with the answer of such a build elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import DEADLINE_S
from target_process import TESTS, Target, environment, profiling_settings

SIMULATED_SYSTEM = str(TESTS / "targets" / "simulated_system.py")
START = "import logging; logging.basicConfig(); import splunk_profiler; print(splunk_profiler.start())"
ALL_ON = {
    "SPLUNK_PROFILER_ENABLED": "true",
    "SPLUNK_SNAPSHOT_PROFILER_ENABLED": "true",
    "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
    "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9",
}


APPLICATION = """
import sys, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import splunk_profiler
trace.set_tracer_provider(TracerProvider())
assert splunk_profiler.start()
def works():
    with trace.get_tracer("it").start_as_current_span("work"):
        while not over.is_set() or time.thread_time() < 0.3: sum(range(1000))  # long enough to be sampled
over = threading.Event()
thread = threading.Thread(target=works)
thread.start()
print("ready", flush=True)
sys.stdin.readline()
over.set()
thread.join()
splunk_profiler.stop()
print("stopped", flush=True)
"""


@pytest.mark.parametrize("data_format", ["text", "pprof-gzip-base64"])
def test_on_macos_collect_receives_what_the_portable_walker_samples(tmp_path: Path, data_format: str) -> None:
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    collect = ["splunk_profiler", "collect", "--port", "0", "--output", str(tmp_path)]
    with Target("simulated_system.py", "darwin", *collect) as collector:
        url = "http://" + collector.line("listening on ")
        env = {**profiling_settings(url), "SPLUNK_PROFILER_DATA_FORMAT": data_format, "OTEL_SERVICE_NAME": "mac"}
        with Target("simulated_system.py", "darwin", str(application), env=env) as service:
            service.line("ready")
            while not (tmp_path / "logs.jsonl").exists() or not (tmp_path / "logs.jsonl").stat().st_size:
                assert service.is_running, service.output
            service.tell("stop")
            assert service.finish() == 0, service.output
            assert "this is darwin" in service.output
            assert "Traceback" not in service.output
        collector.signal(signal.SIGTERM)
        assert collector.finish() == 0, collector.output
    first = json.loads((tmp_path / "logs.jsonl").read_text("utf-8").splitlines()[0])
    assert first["resourceLogs"][0]["scopeLogs"][0]["scope"]["name"] == "otel.profiling"


def test_on_macos_profiles_are_written_to_files(tmp_path: Path) -> None:
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    env = {**profiling_settings("http://127.0.0.1:9"), "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path / 'profiles'}"}
    with Target("simulated_system.py", "darwin", str(application), env=env) as service:
        service.line("ready")
        service.tell("stop")
        assert service.finish() == 0, service.output
        assert "Traceback" not in service.output
    assert list((tmp_path / "profiles").iterdir())


def test_on_windows_start_says_what_it_cannot_do_and_returns(tmp_path: Path) -> None:
    code = tmp_path / "app.py"
    code.write_text(START + "; print(splunk_profiler.start()); splunk_profiler.stop()")
    ended = subprocess.run(
        [sys.executable, SIMULATED_SYSTEM, "win32", str(code)],
        env=environment(ALL_ON),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "False\nFalse\n"), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert "on Windows it can neither sample nor publish" in line


def _started(python: str, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code],
        env=environment({**ALL_ON, **env}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_without_a_gil_nothing_is_sampled_and_one_line_says_so() -> None:
    no_gil = "import sys; sys._is_gil_enabled = lambda: False; "
    ended = _started(sys.executable, no_gil + START, SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED="false")
    assert ended.returncode == 0
    (line,) = [line for line in ended.stderr.splitlines() if "splunk" in line]
    assert "no stacks are sampled: the GIL is off" in line


def test_a_free_threaded_build_starts_only_with_its_gil_on() -> None:
    python = os.environ.get("FREE_THREADED_PYTHON") or shutil.which("python3.14t") or shutil.which("python3.13t")
    if python is None:
        pytest.skip("there is no free-threaded build of Python with this package's dependencies")
    ended = _started(python, START)
    assert ended.stdout == "False\n", ended.stderr
    assert "no stacks are sampled: the GIL is off" in ended.stderr
    ended = _started(python, START, PYTHON_GIL="1")
    assert ended.stdout == "True\n", ended.stderr
    assert "the portable walker is used" in ended.stderr
