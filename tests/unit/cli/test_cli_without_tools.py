"""Tests of the command line without the extra `tools`, as services install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules |= {"rich": None, "elftools": None}
sys.argv[0] = "splunk-profiler"
from splunk_profiler.__main__ import main
main()
"""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("verb", ["collect", "report", "inspect", "host-agent", "demo"])
def test_a_command_that_needs_the_tools_says_how_to_install_them(verb: str) -> None:
    done = _run(verb, "--help")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{verb} needs rich, which is not installed: pip install 'splunk-profiler[tools]'" in done.stderr


def test_run_and_doctor_need_no_tools() -> None:
    done = _run("run", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    done = _run("doctor", "--no-export")
    assert "SPLUNK_PROFILER_ENABLED is not set" in done.stdout
    assert done.stderr == ""
