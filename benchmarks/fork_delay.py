"""The delay of forks while the profiler exports, to a collector that answers and to a silent one.

Hooks of `os.register_at_fork` that are run just before and after the profiler's measure what its own take. The whole
`os.fork` is timed too, in turns with the same process without a profiler. Target: 20 ms for the longest wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from result import Result, main

import splunk_profiler

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "support"))

FORKS = 400
PAUSE_S = 0.01
COLLECTORS = {"an answering": "ok", "a silent": "hang"}


def serve(forks: int) -> None:
    """Fork repeatedly and print the durations in ms."""
    marks: list[int] = []

    def mark() -> None:
        marks.append(time.perf_counter_ns())

    os.register_at_fork(before=mark)  # hooks before a fork are run in reverse
    started = splunk_profiler.start()
    os.register_at_fork(before=mark)
    until = time.monotonic() + forks / 200  # exports are under way then
    while started and time.monotonic() < until:
        time.sleep(PAUSE_S)
    waits, wholes = [], []
    for _ in range(forks):
        time.sleep(PAUSE_S)
        marks.clear()
        began = time.perf_counter_ns()
        child = os.fork()
        if child == 0:
            os._exit(0)
        wholes.append((time.perf_counter_ns() - began) / 1e6)
        waits.append((marks[1] - marks[0]) / 1e6)
        os.waitpid(child, 0)
    splunk_profiler.stop(0)
    print(json.dumps({"waits": waits, "wholes": wholes}))


def measure_forks(forks: int, **settings: str) -> dict[str, list[float]]:
    """Return the durations of the forks of one process in ms."""
    command = [sys.executable, __file__, "serve", str(forks)]
    done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def measure(quick: bool) -> Iterator[Result]:
    """Measure with both collectors, in turns with a process without a profiler."""
    from receiver_process import Receiver  # noqa: PLC0415  # of the tests

    forks = 10 if quick else FORKS
    for collector, mode in COLLECTORS.items():
        without = measure_forks(forks, SPLUNK_PROFILER_ENABLED="false")
        with Receiver(mode=mode) as receiver:
            found = measure_forks(
                forks,
                SPLUNK_PROFILER_ENABLED="true",
                SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url,
                SPLUNK_PROFILER_CALL_STACK_INTERVAL="10",
                SPLUNK_PROFILER_EXPORT_INTERVAL="10",
            )
            receiver.switch("ok")
        details: dict[str, Any] = {
            "median": round(median(found["waits"]), 2),
            "whole fork, median and longest": [round(of(found["wholes"]), 2) for of in (median, max)],
            "without the profiler": [round(of(without["wholes"]), 2) for of in (median, max)],
        }
        yield Result(
            f"longest wait of a fork beside {collector} collector", max(found["waits"]), "ms", 20, details=details
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    else:
        main(measure, __doc__)
