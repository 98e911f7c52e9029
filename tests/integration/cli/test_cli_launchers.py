"""The launcher on other systems, and around the launcher of OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import opentelemetry.trace
import pytest
from command_line import UNREACHABLE_URL, splunk_profiler
from target_process import Target

from splunk_profiler.config.tree import TREE

_INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")
_INSTALLED = Path(opentelemetry.trace.__file__).parents[2]
_REPORT = "import threading; print(any(thread.name.startswith('splunk-profiler-') for thread in threading.enumerate()))"


def test_on_windows_run_executes_the_command(tmp_path: Path) -> None:
    program = tmp_path / "program.exe"
    program.write_text("#!/bin/sh\necho ran\n", "utf-8")
    program.chmod(0o755)
    words = ["splunk_profiler", "run", "--", str(program)]
    with Target("simulated_system.py", "win32", *words, env={"PATHEXT": ".exe"}) as target:
        assert target.finish() == 0, target.output
        assert target.output == "ran"


def test_opentelemetry_that_fails_leaves_the_profiler_on(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_REPORT!r}])"
    program.write_text(f"{_REPORT}\n{child}", "utf-8")
    env = {"SPLUNK_PROFILER_LOGS_ENDPOINT": UNREACHABLE_URL, "OTEL_TRACES_EXPORTER": "not_there"}
    ended = splunk_profiler("run", "--", _INSTRUMENT, sys.executable, program, env=env)
    assert "Failed to auto initialize OpenTelemetry" in ended.stderr
    assert ended.stdout == "True\nTrue\n", "the program, and a Python process that it starts"


def test_opentelemetry_without_the_package_runs_with_one_warning(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    other = tmp_path / "other" / "bin" / "python"
    (packages,) = (tmp_path / "other" / "lib").glob("python*/site-packages")
    for path in _INSTALLED.iterdir():
        if "splunk_profiler" not in path.name:
            (packages / path.name).symlink_to(path)
    elsewhere = ["sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path)]  # OpenTelemetry adds the directory to the path
    env = {"PYTHONPATH": "", **{f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}}
    ended = splunk_profiler("run", "--", *elsewhere, other, _INSTRUMENT, other, "-c", "print('ran')", env=env)
    assert ended.stdout == "ran\n"
    (line,) = ended.stderr.splitlines()
    assert f"not started in this process: {other} does not have it" in line


@pytest.mark.parametrize(
    ("enabled", "broken", "has_tree"),
    [("true", "", True), ("nonsense", "", True), ("false", "", False), ("true", "sys.modules[CONFIG] = None", False)],
)
def test_opentelemetrys_launcher_begins_a_tree_and_never_fails(enabled: str, broken: str, has_tree: bool) -> None:
    program = f"""
import os, runpy, sys
CONFIG = "splunk_profiler.config"
{broken}
runpy.run_module("splunk_profiler.cli.autostart.opentelemetry_instrument")
print({TREE!r} in os.environ)
"""
    env = {**os.environ, "SPLUNK_PROFILER_ENABLED": enabled}
    env.pop(TREE, None)
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == (f"{has_tree}\n", "")
