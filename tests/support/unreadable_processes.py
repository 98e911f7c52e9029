"""Checks for the verbs that read other processes."""

from __future__ import annotations

import subprocess
import sys

from command_line import splunk_profiler
from inspected_process import TargetBuilder, run_inspected


def assert_unreadable_processes_are_one_line(verb: str, workshop: TargetBuilder) -> None:
    """Check that an ended process and one without Python give one line on stderr and exit code 1."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with run_inspected(workshop) as target:
        for pid, text in ((gone.pid, "there is no process"), (target.pid, "does not run Python")):
            done = splunk_profiler(verb, str(pid))
            assert done.returncode == 1
            assert done.stdout == ""
            assert text in done.stderr
            assert len(done.stderr.splitlines()) == 1
