"""The reliability run, for a moment: its scenarios work, and the promises of docs/reliability.md hold for that long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.takes_long
def test_soak_run_that_is_quick_breaks_no_promise() -> None:
    # A hang is reported before the test itself times out.
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), "SOAK_HANG_S": "45"}
    command = [sys.executable, "-m", "soak", "--quick"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 hangs, 0 crashes, 0 broken promises" in done.stdout
