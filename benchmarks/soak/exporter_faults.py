"""A service whose exporter process is killed, or stopped for a while, again and again; the runner does that.

The service must go on with the memory that it had, and the records of what was exported stay accounted for.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

from soak.outages import main

_TITLE = b"\0splunk-profiler exporter for PID "
_MAX_STOPPED_S = 5.0
_POLL_S = 0.1


def find_exporters(value: str) -> list[int]:
    """Return the process ids of exporters that have a variable with this value."""
    end = f"={value}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if _TITLE in (entry / "cmdline").read_bytes():
                found += [int(entry.name)] if end in (entry / "environ").read_bytes() else []
    return found


def find_left_exporters(value: str, timeout_s: float) -> list[int]:
    """Return those that still run after so many seconds."""
    until = time.monotonic() + timeout_s
    while (found := find_exporters(value)) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return found


def disturb(url: str) -> Generator[float, None, None]:
    """Kill or stop the exporter of a collector; yield the seconds until it goes on. It never stays stopped."""
    rng = random.Random(3)
    while True:
        # Each time that it ends within a minute, it is started again after a pause of twice the length.
        for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP):
            yield rng.uniform(0.5, 2.0)
            _signal_all(url, number)
            try:
                yield rng.uniform(0.5, _MAX_STOPPED_S)
            finally:
                _signal_all(url, signal.SIGCONT)


def _signal_all(url: str, number: signal.Signals) -> None:
    for pid in find_exporters(url):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    main()
