"""Threads with deep stacks: ``deep_stacks.py THREADS DEPTH``, profiled as the environment says.

The stacks are other ones at each sample. Prints ``ready``; the line ``calm`` ends the threads,
``used`` has it print ``used {…}``: the CPU time that the profiler's own threads have used by now, and the time.
"""

from __future__ import annotations

import random
import sys
import threading
import time

from marked_work import load_exporter, say

import splunk_profiler

_COUNTED = {f"splunk-profiler-{role}" for role in ("ticker", "sampler", "exporter")}


def descend(depth: int, until: threading.Event) -> None:
    if depth:
        descend(depth - 1, until)
    else:
        until.wait(random.uniform(0.01, 0.03))


def work(depth: int, until: threading.Event) -> None:
    while not until.is_set():
        descend(random.randint(depth // 2, depth), until)


def used() -> dict[str, int]:
    threads = [thread.native_id or 0 for thread in threading.enumerate() if thread.name in _COUNTED]
    return {
        "cpu_ns": sum(time.clock_gettime_ns((~native_id << 3) | 6) for native_id in threads),
        "wall_ns": time.monotonic_ns(),
        "time_ns": time.time_ns(),
    }


def main(count: int, depth: int) -> None:
    load_exporter()
    assert splunk_profiler.start()
    calm = threading.Event()
    for _ in range(count):
        threading.Thread(target=work, args=(depth, calm)).start()
    say("ready")
    for line in sys.stdin:
        if line.strip() == "calm":
            calm.set()
        say("used", used())
    calm.set()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
