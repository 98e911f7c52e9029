"""Workers that switch spans as fast as they can: ``switching_spans.py threads|asyncio|uvloop|gevent COUNT TRUTH``.

All ids of a worker's spans, and its label, are made of the worker's number. In the file TRUTH stands, for the kinds
that run on one thread, which worker computes (an 8-byte number, 0 for none), and behind it how often that has changed.
Says ``ready`` with, for threads, which thread is which worker's.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import mmap
import struct
import sys
import threading
from pathlib import Path

KIND, COUNT = sys.argv[1], int(sys.argv[2])
if KIND == "gevent":
    from gevent import monkey  # type: ignore[import-untyped, unused-ignore]

    monkey.patch_all()

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: E402

import splunk_profiler  # noqa: E402

WORKER: contextvars.ContextVar[int] = contextvars.ContextVar("worker")


class Numbered(IdGenerator):
    """Ids in which every two bytes are the number of the worker."""

    def generate_trace_id(self) -> int:
        return int.from_bytes(WORKER.get().to_bytes(2, "big") * 8, "big")

    def generate_span_id(self) -> int:
        return int.from_bytes(WORKER.get().to_bytes(2, "big") * 4, "big")


class Truth:
    """Which worker computes, for the test to see."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 16)
        self._changes = 0

    def tell(self, worker: int) -> None:
        self._changes += 1
        struct.pack_into("<QQ", self._memory, 0, worker, self._changes)


def compute() -> None:
    sum(range(200))


def run_threads() -> dict[int, int]:
    tracer = trace.get_tracer("switching")
    found: dict[int, int] = {}
    started = threading.Barrier(COUNT + 1)

    def work(number: int) -> None:
        WORKER.set(number)
        found[threading.get_native_id()] = number
        started.wait()
        while True:
            with tracer.start_as_current_span("outer"), splunk_profiler.labels(worker=str(number)):
                compute()
                with tracer.start_as_current_span("inner"):
                    compute()

    for number in range(1, COUNT + 1):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    started.wait()
    return found


async def run_tasks(truth: Truth) -> None:
    tracer = trace.get_tracer("switching")

    async def work(number: int) -> None:
        WORKER.set(number)
        while True:
            with tracer.start_as_current_span("outer"), splunk_profiler.labels(worker=str(number)):
                truth.tell(number)
                compute()
                truth.tell(0)
                await asyncio.sleep(0)
                truth.tell(number)
                compute()
                truth.tell(0)

    tasks = [asyncio.ensure_future(work(number)) for number in range(1, COUNT + 1)]
    print("ready {}", flush=True)
    await asyncio.gather(*tasks)


def run_greenlets(truth: Truth) -> None:
    import gevent  # noqa: PLC0415

    tracer = trace.get_tracer("switching")

    def work(number: int) -> None:
        WORKER.set(number)
        while True:
            with tracer.start_as_current_span("outer"), splunk_profiler.labels(worker=str(number)):
                truth.tell(number)
                compute()
                truth.tell(0)
                gevent.sleep(0)
                truth.tell(number)
                compute()
                truth.tell(0)

    greenlets = [gevent.spawn(work, number) for number in range(1, COUNT + 1)]
    print("ready {}", flush=True)
    gevent.joinall(greenlets)


def main() -> None:
    trace.set_tracer_provider(TracerProvider(id_generator=Numbered()))
    splunk_profiler.start()
    if KIND == "threads":
        print("ready", json.dumps(run_threads()), flush=True)
        sys.stdin.read()
    elif KIND == "gevent":
        run_greenlets(Truth(Path(sys.argv[3])))
    else:
        if KIND == "uvloop":
            import uvloop  # noqa: PLC0415

            uvloop.install()
        asyncio.run(run_tasks(Truth(Path(sys.argv[3]))))


main()
