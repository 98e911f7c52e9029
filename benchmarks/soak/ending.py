"""A profiled process that ends in one of the ways of `endings`: ``ending.py HOW``."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from types import FrameType

import splunk_profiler
from soak.harness import STACKS_SIGNAL


def _stop(_number: int, _frame: FrameType | None) -> None:
    splunk_profiler.stop(1.0)
    sys.exit(5)


def main(how: str) -> None:
    """Work for a moment, or until a signal arrives."""
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    if how == "SIGTERM to a handler that stops":
        signal.signal(signal.SIGTERM, _stop)
    if not splunk_profiler.start():
        raise RuntimeError("the profiler did not start")
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if how.startswith("SIG"):
        time.sleep(600)
    time.sleep(0.5)
    if how == "exception":
        raise ValueError("the end")
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)


if __name__ == "__main__":
    main(sys.argv[1])
