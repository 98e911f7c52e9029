"""The frame of every scenario process: start the profiler, report progress, pause for measurement, and end.

The runner reads its standard output: lines of JSON with ``ready``, ``done``, ``quiet`` or ``result``. Standard input
ends when the process has to.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak import ledger

HANG_S = float(os.environ.get("SOAK_HANG_S", "60"))  # seconds without progress that count as a hang
STACKS_SIGNAL = signal.SIGRTMIN + 5
MAX_WAITING = 20  # of records that come while others go; the stop sends them
NAMES = ("service.name", "soak")


def send_message(**facts: Any) -> None:
    """Send a line to the runner in one write, so that lines of several threads do not mix."""
    os.write(1, (json.dumps(facts) + "\n").encode())


class ScenarioHarness:
    """The life of a scenario process.

    Args:
        is_warm: wait until a record has been delivered, so that all late imports are done.

    Attributes:
        count: amount of work.
        is_over: True when the work is done or the time is up.
    """

    def __init__(self, *, is_warm: bool = True) -> None:
        from opentelemetry import trace  # noqa: PLC0415  # not before the stacks of a hang can be asked for
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        import splunk_profiler  # noqa: PLC0415

        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        self.count = int(sys.argv[1])
        self._until = time.monotonic() + float(sys.argv[2])
        self._profiler = splunk_profiler
        self._lock = threading.RLock()  # signal handlers may call this
        self._done = 0
        self._last_sent_s = 0.0
        ledger.install()
        trace.set_tracer_provider(TracerProvider(resource=Resource.create({NAMES[0]: NAMES[1]})))
        self.tracer = trace.get_tracer("soak")
        if not splunk_profiler.start():
            raise RuntimeError("the profiler did not start")
        deadline = time.monotonic() + HANG_S
        while is_warm and not ledger.delivered():
            if time.monotonic() > deadline:
                raise RuntimeError("no record was delivered")
            time.sleep(0.05)
        send_message(ready=True)

    @property
    def is_over(self) -> bool:
        """Return True when all is done or the time is up."""
        return self._done >= self.count or time.monotonic() > self._until

    def add_done(self, more: int = 1) -> None:
        """Add finished work; report to the runner periodically."""
        with self._lock:
            self._done += more
            now = time.monotonic()
            if more and now - self._last_sent_s > 0.5:
                self._last_sent_s = now
                send_message(done=self._done)

    def end(self, **facts: Any) -> None:
        """Pause for measurement, flush, stop the profiler and send the result."""
        send_message(done=self._done, quiet=True)
        sys.stdin.readline()
        until = time.monotonic() + HANG_S / 2
        while ledger.waiting() > MAX_WAITING and time.monotonic() < until:
            time.sleep(0.05)
        began = time.monotonic()
        self._profiler.stop(2 * HANG_S)
        send_message(result={**facts, "stop_s": round(time.monotonic() - began, 2)})

    def run_on_threads(self, body: Callable[[], None], threads: int) -> None:
        """Run `body` on so many threads and join them."""
        running = [threading.Thread(target=body) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()


def stacks_of(pid: int) -> None:
    """Make another scenario process write its stacks to standard error."""
    try:
        program = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return
    caught = next(line for line in program.splitlines() if line.startswith("SigCgt:"))
    if int(caught.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1:  # the default action would end the process
        os.kill(pid, STACKS_SIGNAL)
        time.sleep(1)  # time to write the stacks
