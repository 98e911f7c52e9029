"""Work that keeps others waiting: ``waiting_work.py SCENARIO``, profiled as the environment says."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import multiprocessing
import queue
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

HOLD_S = 0.12
BLOCK_S = 0.5
WAIT_S = 1.0


def hold_gil() -> None:
    """Stay in C code that keeps the GIL, again and again for half of the time."""
    keep_gil = ctypes.PyDLL(None).usleep
    for _ in range(8):
        keep_gil(int(HOLD_S * 1e6))
        time.sleep(HOLD_S)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


def block() -> None:
    compute(BLOCK_S / 4)
    time.sleep(BLOCK_S * 3 / 4)


def block_in_c() -> None:
    """Block in one call that keeps the GIL, so that nothing else runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(BLOCK_S * 1e6))


async def serve() -> None:
    """Keep the loop busy with short steps of one task for a second, then block it four times."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        compute(0.001)
        await asyncio.sleep(0)
    spans, blocked_ns = [], 0
    for number in range(4):
        if number == 2:
            named: asyncio.Task[None] | None = asyncio.current_task()
            assert named is not None
            named.set_name("nightly report")
        with trace.get_tracer("loop").start_as_current_span("GET /report") as span:
            spans.append(f"{span.get_span_context().span_id:016x}")
            began_ns = time.monotonic_ns()
            block_in_c() if number == 1 and sys.version_info >= (3, 12) else block()
            blocked_ns += time.monotonic_ns() - began_ns
        await asyncio.sleep(0.02)
    say("blocked", {"spans": spans, "ns": blocked_ns})


async def serve_in_task() -> None:
    await asyncio.create_task(serve())


class Shop:
    """Things that threads wait for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition()
        self.work: queue.Queue[None] = queue.Queue()
        self.letters: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.parcels: multiprocessing.queues.SimpleQueue[None] = multiprocessing.SimpleQueue()
        self.paid: Future[None] = Future()

    def enter(self) -> None:
        with self.lock:
            pass

    def acquire(self) -> None:
        if self.lock.acquire(timeout=WAIT_S):
            self.lock.release()

    def wait_for_change(self) -> None:
        with self.changed:
            self.changed.wait(WAIT_S)

    def take_change(self) -> None:
        self.wait_for_change()

    def read_letter(self) -> None:
        self.letters.get()

    def take_letter(self) -> None:
        self.read_letter()

    def read_parcel(self) -> None:
        self.parcels.get()

    def take_parcel(self) -> None:
        self.read_parcel()

    def see_paid(self) -> None:
        self.paid.result()

    def take_work(self) -> None:
        self.work.get()


def wait_for_locks() -> None:
    """Hold a lock that others want, while a pool and a thread wait for work."""
    shop = Shop()
    waits = [shop.enter, shop.acquire, shop.take_change, shop.take_work]
    waits += [shop.take_letter, shop.take_parcel, shop.see_paid]
    threads = [threading.Thread(target=wait, name=wait.__name__) for wait in waits]
    with ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(int).result()
        with shop.lock:
            for thread in threads:
                thread.start()
            time.sleep(WAIT_S)
        shop.work.put(None)
        shop.letters.put(None)
        shop.parcels.put(None)
        shop.paid.set_result(None)
        for thread in threads:
            thread.join()


def rest() -> None:
    time.sleep(WAIT_S)


def take_turns() -> None:
    """Compute in three threads, of which one has the GIL at a time, while another sleeps."""
    threads = [threading.Thread(target=compute, args=(WAIT_S,), name=f"worker {number}") for number in range(3)]
    threads.append(threading.Thread(target=rest, name="sleeper"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def block_asyncio() -> None:
    asyncio.run(serve_in_task())


def block_uvloop() -> None:
    uvloop = importlib.import_module("uvloop")
    uvloop.run(serve_in_task())


SCENARIOS = {
    scenario.__name__: scenario for scenario in (hold_gil, wait_for_locks, take_turns, block_asyncio, block_uvloop)
}


def main(scenario: str) -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    SCENARIOS[scenario]()
    splunk_profiler.stop(10)
    say("stopped")


if __name__ == "__main__":
    main(sys.argv[1])
