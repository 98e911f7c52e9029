"""A service to be measured with a profiler or without: a program that works while it is told to.

    python benchmarks/service.py saturated|unsaturated|kinds:BUSY PROFILER|off

Runs in any environment that has the OpenTelemetry SDK; answers each line of standard input with one of JSON:
``start``, ``run SECONDS``, ``state``, ``stop`` (with the CPU time of the process since the start). Saturated are 8
threads that serve requests one after the other, unsaturated the same threads with pauses; 24 more wait 40 calls deep.
``kinds`` is one thread with `kinds_of_work` beside BUSY threads that never wait.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kinds_of_work
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from population import APPLICATION_PREFIX, BlockedThreads, descend
from profilers import PROFILERS, Profiler

BUSY, IDLE, DEPTH = 8, 24, 40
THREADS = BUSY + IDLE + 1
PAUSE_S, REQUESTS_BETWEEN = 0.02, 10
ORDER = [{"number": number, "name": f"item {number}", "price": number * 1.19} for number in range(40)]


class KindIds(IdGenerator):
    """Ids of spans whose first digit says of which kind of work they are."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.kind = ""

    def generate_span_id(self) -> int:
        number = kinds_of_work.KINDS.index(self.kind) + 1 if self.kind else 15
        return number << 60 | random.getrandbits(60)

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id()


def handle_request() -> None:
    """Serve a made-up request."""
    order: list[dict[str, Any]] = json.loads(json.dumps(ORDER))
    order.sort(key=lambda item: str(item["name"]))
    total = 0.0
    for _ in range(20):
        total += sum(item["price"] * 0.81 for item in order)
    if total <= 0:
        raise ValueError("an order without a price")


class RequestThreads:
    """The threads that serve requests while the gate is open."""

    def __init__(self, tracer: trace.Tracer, pause_s: float) -> None:
        self._tracer = tracer
        self._pause_s = pause_s
        self._served = [0] * BUSY
        self._is_open = threading.Event()
        self._threads = [
            threading.Thread(target=self._body, args=(number,), name=f"{APPLICATION_PREFIX}busy-{number}", daemon=True)
            for number in range(BUSY)
        ]
        for thread in self._threads:
            thread.start()

    def _body(self, number: int) -> None:
        while True:
            self._is_open.wait()
            while self._is_open.is_set():
                for _ in range(REQUESTS_BETWEEN):
                    with self._tracer.start_as_current_span("request"):
                        descend(DEPTH // 2, handle_request)
                    self._served[number] += 1
                if self._pause_s:
                    time.sleep(self._pause_s)

    def run(self, seconds: float) -> dict[str, float]:
        """Serve for so long; return requests, seconds, CPU seconds of the process, and those of other threads."""
        self._is_open.set()
        served, wall, cpu, own = sum(self._served), time.perf_counter(), time.process_time(), application_cpu_s()
        time.sleep(seconds)
        served, own = sum(self._served) - served, application_cpu_s() - own
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self._is_open.clear()
        return {"served": served, "wall_s": wall, "cpu_s": cpu, "others_s": cpu - own}


class KindsThread:
    """A thread with several kinds of work beside busy ones."""

    def __init__(self, tracer: trace.Tracer, ids: KindIds, busy: int) -> None:
        self._tracer = tracer
        self._ids = ids
        self._busy = busy
        kinds_of_work.work(0.2, self._span)

    def _span(self, kind: str) -> Any:
        self._ids.kind = kind
        return self._tracer.start_as_current_span(kind)

    def run(self, seconds: float) -> dict[str, Any]:
        """Work for so long; return the times of each kind."""
        is_over = threading.Event()

        def spin() -> None:
            value = 0
            while not is_over.is_set():
                for step in range(2000):
                    value = (value * 31 + step) % 1_000_003

        kinds: dict[str, dict[str, int]] = {}
        threads = [threading.Thread(target=spin, daemon=True) for _ in range(self._busy)]
        worker = threading.Thread(target=lambda: kinds.update(kinds_of_work.work(seconds, self._span)), name="worker")
        for thread in [*threads, worker]:
            thread.start()
        worker.join()
        is_over.set()
        for thread in threads:
            thread.join()
        return {"kinds": kinds}


def application_cpu_s() -> float:
    """Return the CPU seconds of the main thread and the application's threads."""
    own = filter(is_of_application, threading.enumerate())
    return sum(time.clock_gettime((~(thread.native_id or 0) << 3) | 6) for thread in own)  # the kernel's clock of it


def is_of_application(thread: threading.Thread) -> bool:
    """Return True for the main thread and the application's."""
    return thread.name.startswith(("MainThread", APPLICATION_PREFIX))


def read_state() -> dict[str, Any]:
    """Return the memory of this process, its threads, and the modules of gRPC in it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    return {
        "memory_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "thread_names": sorted(thread.name for thread in threading.enumerate() if not is_of_application(thread)),
        "grpc_modules": sum(name.partition(".")[0] in {"grpc", "grpcio"} for name in sys.modules),
    }


def serve(make_threads: Callable[[], RequestThreads | KindsThread], profiler: Profiler | None) -> None:
    """Carry out the commands."""
    threads = make_threads()
    began_ns = 0
    for line in sys.stdin:
        command, *arguments = line.split()
        answer: dict[str, Any] = {"pid": os.getpid()}
        if command == "run":
            answer |= threads.run(float(arguments[0]))
        elif command == "state":
            answer |= read_state()
        elif command == "start" and profiler is not None:
            profiler.start()
            began_ns = time.process_time_ns()
        elif profiler is not None:
            profiler.stop()
            answer["cpu_ns"] = time.process_time_ns() - began_ns
        print(json.dumps(answer | {"at_s": time.monotonic()}), flush=True)


def main(shape: str, profiler: Profiler | None) -> None:
    """Make the service of this shape and serve."""
    ids = KindIds()
    provider = TracerProvider(resource=Resource({"service.name": "benchmark"}), id_generator=ids)
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("benchmark")
    name, _, busy = shape.partition(":")
    if name == "kinds":
        serve(lambda: KindsThread(tracer, ids, int(busy)), profiler)
    else:
        with BlockedThreads(IDLE, DEPTH):
            serve(lambda: RequestThreads(tracer, 0 if name == "saturated" else PAUSE_S), profiler)


if __name__ == "__main__":
    main(sys.argv[1], None if sys.argv[2] == "off" else PROFILERS[sys.argv[2]])
    sys.stdout.flush()
    os._exit(0)  # the threads of the service never end
