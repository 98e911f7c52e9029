"""The cost of a flood of messages: 8 processes send as fast as they can, to the profiler and to an unread socket.

A service works in spans on one thread. It is measured while the processes flood its profiler and while they flood an
unread socket, in turns, so that the senders' own CPU use does not count. The CPU time of the profiler's threads is
measured then, and with one sender that waits for room: that leaves them the processors and delivers most messages.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from result import Result, main, median, middle_half, significant

import splunk_profiler
from splunk_profiler.system.threads import cpu_ns_or_zero, read_proc_file

SENDERS = 8
KINDS = {  # datagrams
    "samples of unknown transactions": "struct.pack('=HH', 1, 1) + os.urandom(42)",
    "empty": "b''",
    "too long": "bytes(70_000)",
}
SENDER = """
import json, os, select, socket, struct, sys
sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
commands = os.fdopen(0, buffering=1)
for line in commands:
    path = json.loads(line)
    sending.connect(path)
    message = DATAGRAM
    print("ready", flush=True)
    sent, going = 0, True
    while going:
        for _ in range(200):
            try:
                sending.send(message)
                sent += 1
            except OSError:
                WAIT
        going = not os.path.exists(path + ".over")
    print(sent, flush=True)
"""


class Senders:
    """Processes that flood a socket on command."""

    def __init__(self, datagram: str, count: int, *, waiting: bool) -> None:
        wait = "select.select([], [sending], [], 0.05)" if waiting else "pass"
        command = [sys.executable, "-c", SENDER.replace("DATAGRAM", datagram).replace("WAIT", wait)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def flood(self, path: str) -> None:
        """Start the flood of all processes and wait until it runs."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(path) + "\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()

    def stop_flood(self, path: str) -> int:
        """Stop the flood and return the number of accepted messages."""
        over = Path(path + ".over")
        over.touch()
        sent = 0
        for process in self._processes:
            assert process.stdout is not None
            sent += int(process.stdout.readline())
        over.unlink()
        return sent

    def end(self) -> None:
        """End the processes by closing their input."""
        for process in self._processes:
            process.communicate()


def work() -> None:
    """Serve one request."""
    with trace.get_tracer("benchmark").start_as_current_span("request"):
        sum(number * number for number in range(2000))


def profiler_cpu_s() -> float:
    """Return the CPU seconds so far of the thread that counts messages and of the one that receives them."""
    ids = [thread.native_id or 0 for thread in threading.enumerate() if thread.name == "splunk-profiler-correlator"]
    tasks = Path("/proc/self/task").iterdir()
    ids += [int(task.name) for task in tasks if read_proc_file(task / "comm") == "splunk-receiver\n"]
    return sum(map(cpu_ns_or_zero, ids)) / 1e9


def measure_stretch(seconds: float) -> dict[str, float]:
    """Measure requests per second of wall time and of CPU time, and the profiler's share of a core."""
    until = time.perf_counter() + seconds
    began, own, profiler, served = time.perf_counter(), time.thread_time(), profiler_cpu_s(), 0
    while time.perf_counter() < until:
        work()
        served += 1
    took = time.perf_counter() - began
    return {
        "per_second": served / took,
        "per_cpu_second": served / (time.thread_time() - own),
        "cores": (profiler_cpu_s() - profiler) / took,
    }


def measure(quick: bool) -> Iterator[Result]:
    """Measure each kind of datagram, to the profiler and to an unread socket."""
    seconds, rounds = (0.02, 1) if quick else (2.0, 6)
    trace.set_tracer_provider(TracerProvider())
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        config = splunk_profiler.Config(correlation="true", socket_directory=folder)
        if not splunk_profiler.start(config):
            raise RuntimeError("the profiler did not start")
        work()
        until = time.monotonic() + 10
        while not list(Path(folder).glob("*.sock")) and time.monotonic() < until:
            time.sleep(0.001)  # a thread of the profiler makes it later
        (path,) = map(str, Path(folder).glob("*.sock"))
        nobody = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        nobody.bind(f"{folder}/nobody")
        for kind, datagram in KINDS.items():
            yield waiting(kind, Senders(datagram, 1, waiting=True), path, seconds)
            senders = Senders(datagram, SENDERS, waiting=False)
            yield from measure_flood(kind, senders, {path: seconds, f"{folder}/nobody": seconds}, rounds)
        nobody.close()
        Path(folder, "nobody").unlink()
        splunk_profiler.stop()


def waiting(kind: str, senders: Senders, path: str, seconds: float) -> Result:
    """Measure the profiler's CPU time with a sender that waits for room."""
    senders.flood(path)
    began, used = time.perf_counter(), profiler_cpu_s()
    time.sleep(seconds)
    took, used = time.perf_counter() - began, profiler_cpu_s() - used
    sent = senders.stop_flood(path)
    senders.end()
    return Result(
        f"the profiler's CPU while one process sends all that it takes, {kind}",
        used / took,
        "of a core",
        0.15,
        details={"messages_per_second": significant(sent / took)},
    )


def measure_flood(kind: str, senders: Senders, stretches: dict[str, float], rounds: int) -> Iterator[Result]:
    """Measure one kind of datagram; the first path is the profiler's socket."""
    profiler, nobody = stretches
    seen: dict[str, list[dict[str, float]]] = {path: [] for path in stretches}
    taken: list[float] = []
    for number in range(rounds):
        for path in (profiler, nobody) if number % 2 else (nobody, profiler):
            senders.flood(path)
            seen[path].append(measure_stretch(stretches[path]))
            sent = senders.stop_flood(path)
            if path == profiler:
                taken.append(sent / stretches[path])
    senders.end()
    cores = [one["cores"] for one in seen[profiler]]
    yield Result(
        f"the profiler's CPU while {SENDERS} processes flood it, {kind}",
        significant(max(cores)),
        "of a core",
        0.15,
        details={"median": median(cores), "messages_per_second": median(taken)},
    )
    for measured in ("per_second", "per_cpu_second"):
        ratios = [
            with_[measured] / without[measured] for with_, without in zip(seen[profiler], seen[nobody], strict=True)
        ]
        yield Result(
            f"requests {measured.replace('_', ' ')}, profiler flooded / somebody else, {kind}",
            median(ratios),
            "times",
            0.9,
            at_least=True,
            details={"middle_half": middle_half(ratios), "rounds": rounds},
        )


if __name__ == "__main__":
    main(measure, __doc__)
