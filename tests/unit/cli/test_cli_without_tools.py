"""Tests of the command line without the extra `tools`, as services install it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split())
sys.argv[0] = "splunk-profiler"
from splunk_profiler.__main__ import main
main()
"""
BOTH = "rich elftools"


def _run(missing: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, missing, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("missing", "package", "words"),
    [
        *((BOTH, "rich", (verb, "--help")) for verb in ("collect", "report", "inspect", "host-agent", "demo")),
        ("elftools", "pyelftools", ("inspect", str(os.getpid()))),
        ("elftools", "pyelftools", ("host-agent", str(os.getpid()))),
    ],
)
def test_a_command_that_needs_the_tools_says_how_to_install_them(
    missing: str, package: str, words: tuple[str, ...]
) -> None:
    done = _run(missing, *words)
    assert (done.returncode, done.stdout) == (1, "")
    needed = f"this command needs {package}, which is not installed: pip install 'splunk-profiler[tools]'"
    assert done.stderr == f"splunk-profiler: error: {needed}\n"


def test_the_viewer_says_which_extra_it_needs(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").touch()
    done = _run("starlette uvicorn", "view", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith("is not installed: pip install 'splunk-profiler[view]'\n")


def test_run_and_doctor_need_no_tools() -> None:
    done = _run(BOTH, "run", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    done = _run(BOTH, "doctor", "--no-export")
    assert "SPLUNK_PROFILER_ENABLED is not set" in done.stdout
    assert done.stderr == ""
