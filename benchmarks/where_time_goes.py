"""The accuracy of profiles: received times by kind of work, compared with the thread's own clocks.

One worker does six kinds of work in turns of some milliseconds, alone and beside threads that never wait; its process
is profiled every 10 ms and sends to a real receiver. The kinds take turns at random, more often those with less time
so far: otherwise nearly all samples beside busy threads would be of the pipe, whose every step waits for the GIL. A
figure is the largest difference of a kind's shares in percentage points: share of samples and of wall time against its
share of the elapsed time, share of CPU time against its share of the used CPU time.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from result import Result, main, significant

import splunk_profiler

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "support"))

INTERVAL_MS = 10
BUSY_THREAD_COUNTS = (0, 2, 4)
WORKER = "worker"
RNG = random.Random(1)
TEXT = ("GET /items/%d HTTP/1.1 200 %d\n" * 2000) % tuple(range(4000))  # a call must be shorter than the interval
NUMBERS = [RNG.random() for _ in range(25_000)]
BLOCK = bytes(6 << 20)
PATTERN = re.compile(r"(\w+) /(\w+)/(\d+) HTTP/[\d.]+ (5\d\d)")  # few: freeing many would count for the caller


def loops() -> int:
    value = 0
    for step in range(30_000):
        value = (value * 31 + step) % 1_000_003
    return value


def calls() -> int:
    return sum(map(one_more, range(60_000)))


def one_more(number: int) -> int:
    return number + 1


def holds_gil() -> float:
    return sorted(NUMBERS)[0]


def releases_gil() -> bytes:
    return hashlib.sha256(BLOCK).digest()


def regex() -> int:
    return len(PATTERN.findall(TEXT))


class Pipe:
    """A process that echoes its input."""

    def __init__(self) -> None:
        self._echo = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._echo.stdin is not None
        assert self._echo.stdout is not None
        self._to, self._from = self._echo.stdin.fileno(), self._echo.stdout.fileno()

    def talk(self) -> None:
        for _ in range(50):
            os.write(self._to, BLOCK[:16_384])
            left = 16_384
            while left:
                left -= len(os.read(self._from, left))

    def close(self) -> None:
        self._echo.communicate()


def work(seconds: float) -> dict[str, dict[str, int]]:
    """Run the kinds of work; return function name → wall ns and CPU ns."""
    pipe = Pipe()
    kinds: list[Callable[[], Any]] = [loops, calls, holds_gil, releases_gil, regex, pipe.talk]
    spent = {kind.__name__: {"wall": 0, "cpu": 0} for kind in kinds}
    until = time.monotonic() + seconds
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    while time.monotonic() < until:
        kind = min(RNG.sample(kinds, 3), key=lambda kind: spent[kind.__name__]["wall"])
        for _ in range(RNG.randrange(1, 4)):
            kind()
        now, used = time.monotonic_ns(), time.thread_time_ns()
        spent[kind.__name__]["wall"] += now - wall
        spent[kind.__name__]["cpu"] += used - cpu
        wall, cpu = now, used
    pipe.close()
    return spent


def serve(busy: int, seconds: float) -> None:
    """Run the profiled process: print the times of its worker, and its CPU time."""
    stop_event = threading.Event()

    def spin() -> None:
        value = 0
        while not stop_event.is_set():
            for step in range(2000):
                value = (value * 31 + step) % 1_000_003

    others = [threading.Thread(target=spin, daemon=True) for _ in range(busy)]
    for other in others:
        other.start()
    result: dict[str, dict[str, int]] = {}
    work(0.2)
    if not splunk_profiler.start():
        raise RuntimeError("the profiler did not start")
    began = time.process_time_ns()
    worker = threading.Thread(target=lambda: result.update(work(seconds)), name=WORKER)
    worker.start()
    worker.join()
    stop_event.set()
    for other in others:
        other.join()
    splunk_profiler.stop(20)
    print(json.dumps({"kinds": result, "process_cpu": time.process_time_ns() - began}))


def shares(found: dict[str, Any]) -> dict[str, float]:
    whole = sum(found.values()) or 1
    return {kind: 100 * value / whole for kind, value in found.items()}


def run(data_format: str, busy: int, seconds: float) -> Iterator[Result]:
    """Run one process and return its times and the received profiles."""
    from receiver_process import Receiver  # noqa: PLC0415  # of the tests

    with Receiver() as receiver:
        environment = os.environ | {
            "SPLUNK_PROFILER_ENABLED": "true",
            "SPLUNK_PROFILER_CALL_STACK_INTERVAL": str(INTERVAL_MS),
            "SPLUNK_PROFILER_DATA_FORMAT": data_format,
            "SPLUNK_PROFILER_LOGS_ENDPOINT": receiver.url,
            "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
        }
        command = [sys.executable, __file__, "serve", str(busy), str(seconds)]
        answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        expected = json.loads(answer.stdout)
        records = receiver.records(1)
    found = (count_text_records if data_format == "text" else sum_profiles)(records, expected["kinds"])
    totals = found.pop("totals", Counter())
    where = f"{data_format.partition('-')[0]}, {f'beside {busy} busy threads' if busy else 'alone'}"
    for value, seen in found.items():
        right = shares({kind: spent["cpu" if value == "CPU" else "wall"] for kind, spent in expected["kinds"].items()})
        shown = shares({kind: seen[kind] for kind in right})
        yield Result(
            f"largest error of a share of {value}, {where}",
            max(abs(shown[kind] - right[kind]) for kind in right),
            "points",
            3 if busy else 1.5,
            details={kind: [significant(shown[kind]), significant(right[kind])] for kind in right},
        )
    for value, sum_ns in totals.items():
        right_ns = (
            sum(spent["wall"] for spent in expected["kinds"].values()) if value == "wall" else expected["process_cpu"]
        )
        yield Result(f"error of all {value}, {where}", 100 * abs(sum_ns / right_ns - 1), "%", 1)


def count_text_records(records: list[dict[str, Any]], kinds: dict[str, Any]) -> dict[str, Counter[str]]:
    """Count records by kind, and those of them in which the thread ran."""
    seen, ran = Counter[str](), Counter[str]()
    for record in records:
        if record["body"].startswith(f'"{WORKER}"'):
            names = re.findall(r"\.(\w+)\(", record["body"])
            kind = next((name for name in names if name in kinds), "")
            seen[kind] += 1
            ran[kind] += "RUNNABLE" in record["body"]
    return {"samples": seen, "CPU": ran}


def sum_profiles(records: list[dict[str, Any]], kinds: dict[str, Any]) -> dict[str, Counter[str]]:
    """Sum samples, wall and CPU time by kind; return also the worker's wall time and all CPU time."""
    from received_profiles import read  # noqa: PLC0415  # of the tests

    found = {value: Counter[str]() for value in ("samples", "wall", "CPU", "totals")}
    for record in records:
        for sample in read(record).samples:
            found["totals"]["CPU"] += sample.cpu_ns
            if sample.labels.get("thread.name") != WORKER:
                continue
            names = (function.rpartition(".")[2] for function in sample.functions)
            kind = next((name for name in names if name in kinds), "")
            found["totals"]["wall"] += sample.wall_ns
            found["samples"][kind] += sample.count
            found["wall"][kind] += sample.wall_ns
            found["CPU"][kind] += sample.cpu_ns
    return found


def measure(quick: bool) -> Iterator[Result]:
    """Measure text and pprof, alone and beside busy threads."""
    for busy in BUSY_THREAD_COUNTS[:2] if quick else BUSY_THREAD_COUNTS:
        for data_format in ("pprof-gzip-base64", "text"):
            yield from run(data_format, busy, 0.3 if quick else 60 + 20 * busy)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), float(sys.argv[3]))
    else:
        main(measure, __doc__)
