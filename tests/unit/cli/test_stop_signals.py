"""Waits of commands for a signal that ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from target_process import Target

WAIT_PROGRAM = """
import sys
from splunk_profiler.cli.signals import block_signals, wait_for_signal
with block_signals():
    print("ready", flush=True)
    print("signal:", wait_for_signal(float(sys.argv[1])), flush=True)
"""


def test_a_pause_that_outlasts_the_wait_is_no_signal_to_stop() -> None:
    wait_s = 0.3
    with subprocess.Popen(
        [sys.executable, "-c", WAIT_PROGRAM, str(wait_s)], stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "ready\n"
        os.kill(waiting.pid, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2 * wait_s)
        os.kill(waiting.pid, signal.SIGCONT)
        assert waiting.stdout.readline() == "signal: False\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait(number: signal.Signals) -> None:
    with Target(sys.executable, "-c", WAIT_PROGRAM, "60") as waiting:
        waiting.line("ready")
        waiting.signal(number)
        waiting.line("signal: True")
