"""Each kind of event for some seconds: ``all_events.py SECONDS``, profiled as the environment says."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from contextlib import suppress

LOCK = threading.Lock()
kept: list[object] = []


def hold(until_s: float) -> None:
    """Hold the lock half of the time, while another thread waits for it."""
    while time.monotonic() < until_s:
        with LOCK:
            time.sleep(0.05)
        time.sleep(0)


def work() -> None:
    """Allocate, raise, collect garbage and use the processor, in one callback of the loop."""
    kept.append([bytearray(1000) for _ in range(100)])
    for _ in range(100):
        with suppress(ValueError):
            int("no number")
    gc.collect()
    sum(range(2_000_000))


async def main(seconds: float) -> None:
    """Run all of it, and tasks that wait meanwhile."""
    until_s = time.monotonic() + seconds
    threads = [threading.Thread(target=hold, args=(until_s,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
    while time.monotonic() < until_s:
        work()
        await asyncio.sleep(0.05)
    for task in waiting:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
