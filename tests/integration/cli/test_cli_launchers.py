"""The launcher on other systems and around other launchers."""

from __future__ import annotations

import sys

from command_line import UNREACHABLE_URL
from target_process import Target


def test_on_windows_run_executes_the_command() -> None:
    words = ["splunk_profiler", "run", "--endpoint", UNREACHABLE_URL, "--", sys.executable, "-c", "print('ran')"]
    with Target("simulated_system.py", "win32", *words) as target:
        assert target.finish() == 0, target.output
        assert target.output == "ran"
