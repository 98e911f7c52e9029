"""Signals at random moments, sent by the runner, whose handlers start and stop the profiler, fork, and open spans.

Handlers run in the main thread, in the middle of whatever it does: `start`, `stop`, a fork, an import, a span.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from types import FrameType

import splunk_profiler
from soak.harness import ScenarioHarness

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM)
MAX_DEPTH = 3  # handlers that interrupt each other


class Storm:
    """The counts of signals, and their handler."""

    def __init__(self, harness: ScenarioHarness) -> None:
        self.seen: Counter[str] = Counter()
        self.rng = random.Random(1)
        self._harness = harness
        self._depth = 0
        self._forking = False  # hooks of the standard library (concurrent.futures) do not bear a fork within a fork

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.seen[signal.Signals(number).name] += 1
        if self._depth >= MAX_DEPTH:
            return
        self._depth += 1
        try:
            choice = self.rng.random()
            if choice < 0.1:
                splunk_profiler.stop(0.2)
            elif choice < 0.4:
                splunk_profiler.start()
            elif choice < 0.45 and not self._forking:
                self._fork()
            else:
                with self._harness.tracer.start_as_current_span("handler"), splunk_profiler.labels(signal=str(number)):
                    pass
        finally:
            self._depth -= 1

    def work(self) -> None:
        """Run another thread."""
        while not self._harness.is_over:
            with self._harness.tracer.start_as_current_span("work"):
                time.sleep(0.002)

    def _fork(self) -> None:
        self._forking = True
        child = os.fork()
        if child == 0:
            os._exit(0)
        self._forking = False
        os.waitpid(child, 0)


def main() -> None:
    """Work until there have been enough signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # signals arrive as soon as the harness is ready
    harness = ScenarioHarness()
    storm = Storm(harness)
    for number in SIGNALS:
        signal.signal(number, storm.handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    working = [threading.Thread(target=storm.work) for _ in range(3)]
    for thread in working:
        thread.start()
    before = 0
    while not harness.is_over:
        # Not in the handler, which runs even while the main thread is deadlocked.
        harness.add_done(storm.seen.total() - before)
        before = storm.seen.total()
        with harness.tracer.start_as_current_span("main"):
            splunk_profiler.start()
            if storm.rng.random() < 0.02:
                subprocess.run(["/bin/true"], check=False)  # the end of a child is a signal as well
            if storm.rng.random() < 0.02:
                splunk_profiler.stop(0.2)
            time.sleep(0.001)
    for thread in working:
        thread.join()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    splunk_profiler.start()
    harness.end(signals=storm.seen)


if __name__ == "__main__":
    main()
