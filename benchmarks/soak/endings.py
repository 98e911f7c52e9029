"""Processes that end in every way, at every moment, with collectors that answer, are silent, or are not there.

Each is a process of its own (`ending`) that has to be gone, with the status that it would have without the profiler,
before `HANG_S` is over. It runs without a profiler of its own: the runner watches it like the others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from soak.harness import HANG_S, send_message, stacks_of

ENDING = Path(__file__).with_name("ending.py")
# How a process ends → the exit statuses that are right. Python may still be starting when the signal comes.
STATUSES = {
    "return": {0},
    "exception": {1},
    "sys.exit": {3},
    "os._exit": {4},
    "SIGTERM": {-signal.SIGTERM},
    "SIGTERM twice": {-signal.SIGTERM},
    "SIGTERM to a handler that stops": {-signal.SIGTERM, 5},
    "SIGINT": {-signal.SIGINT, 1, 130},
    "SIGKILL": {-signal.SIGKILL},
}
SIGNALS = {
    "SIGTERM": [signal.SIGTERM],
    "SIGTERM twice": [signal.SIGTERM, signal.SIGTERM],
    "SIGTERM to a handler that stops": [signal.SIGTERM, signal.SIGTERM],
    "SIGINT": [signal.SIGINT],
    "SIGKILL": [signal.SIGKILL],
}
CONCURRENCY = 4
MAX_SIGNAL_DELAY_S = 3.0  # until the signal arrives


class Endings:
    """The processes and the counts of their ends.

    Attributes:
        ends: counts by way.
        faults: counts of faults.
        longest_s: seconds from a signal to the end.
    """

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.longest_s = 0.0
        self._endpoints = (os.environ["SPLUNK_PROFILER_LOGS_ENDPOINT"], os.environ["SOAK_SILENT"], "http://127.0.0.1:9")
        self._random = random.Random(1)
        self._lock = threading.Lock()

    def run_ending(self, number: int) -> None:
        """Start a process and check its end."""
        how = list(STATUSES)[number % len(STATUSES)]
        env = {**os.environ, "SPLUNK_PROFILER_LOGS_ENDPOINT": self._random.choice(self._endpoints)}
        process = subprocess.Popen([sys.executable, str(ENDING), how], env=env, stdin=subprocess.DEVNULL)
        if how in SIGNALS:
            time.sleep(self._random.random() * MAX_SIGNAL_DELAY_S)
        began = time.monotonic()
        for signum in SIGNALS.get(how, ()):
            process.send_signal(signum)
            time.sleep(self._random.random() * 0.05)
        fault = ""
        try:
            status = process.wait(HANG_S)
            if status not in STATUSES[how]:
                fault = f"{how}: ended with {status}"
        except subprocess.TimeoutExpired:
            fault = f"{how}: hangs"
            stacks_of(process.pid)
            process.kill()
            process.wait()
        with self._lock:
            self.ends[how] += 1
            if fault:
                self.faults[fault] += 1
            elif how in SIGNALS:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
            send_message(done=self.ends.total())


def main() -> None:
    """End processes until the count is reached."""
    count, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    endings = Endings()

    def end_next(number: int) -> None:
        if time.monotonic() < until:
            endings.run_ending(number)

    send_message(ready=True)
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(end_next, range(count)))
    send_message(quiet=True)
    sys.stdin.readline()
    longest = {"longest end by a signal (s)": round(endings.longest_s, 2)}
    send_message(result={"ends": endings.ends, "faults": endings.faults, **longest})


if __name__ == "__main__":
    main()
