"""Short programs in processes of their own, without settings of the machine."""

from __future__ import annotations

import os
import subprocess
import sys

OFF = "http://127.0.0.1:9"  # nothing listens there: these tests do not look at what is sent


def run_code(code: str, **variables: str) -> str:
    """Run a program in an interpreter of its own, which must end well; return its output, then its errors."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPLUNK_", "OTEL_", "ELASTIC_"))}
    env |= {"SPLUNK_PROFILER_LOGS_ENDPOINT": OFF, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
