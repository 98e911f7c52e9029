"""Tests of the command line without the extra `tools`, as services install it."""

from __future__ import annotations

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


def _run(missing: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, missing, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("verb", "extra"),
    [*dict.fromkeys(("collect", "report", "replay", "inspect", "host-agent"), "tools").items(), ("demo", "demo")],
)
def test_a_command_that_needs_an_extra_says_how_to_install_it(verb: str, extra: str) -> None:
    done = _run("rich", verb, "--help")
    assert (done.returncode, done.stdout) == (1, "")
    needed = f"this command needs rich, which is not installed: pip install 'splunk-profiler[{extra}]'"
    assert done.stderr == f"splunk-profiler: error: {needed}\n"


def test_the_viewer_says_which_extra_it_needs(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").touch()
    done = _run("starlette uvicorn", "view", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith("is not installed: pip install 'splunk-profiler[view]'\n")


def test_run_and_doctor_need_no_tools() -> None:
    done = _run("rich", "run", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    done = _run("rich", "doctor", "--no-export")
    assert "SPLUNK_PROFILER_ENABLED is not set" in done.stdout
    assert done.stderr == ""
