"""Short programs in processes of their own, without settings of the machine."""

from __future__ import annotations

import subprocess
import sys

from command_line import UNREACHABLE_URL, clean_environment


def run_code(code: str, **variables: str) -> str:
    """Run a program in an interpreter of its own, which must end well; return its output, then its errors.

    What it exports goes nowhere: these tests do not look at it.
    """
    env = clean_environment({"SPLUNK_PROFILER_LOGS_ENDPOINT": UNREACHABLE_URL, **variables})
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
