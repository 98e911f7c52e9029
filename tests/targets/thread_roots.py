"""Threads and tasks with unusual first functions: ``thread_roots.py SCENARIO``, profiled as the environment says."""

from __future__ import annotations

import asyncio
import sys
import threading

from marked_work import say

import splunk_profiler

over = threading.Event()


@splunk_profiler.labels(job="nightly")
def compute_nightly() -> None:
    while not over.is_set():
        sum(range(1_000))


@splunk_profiler.labels(job="letters")
async def wait_for_letters() -> None:
    await asyncio.sleep(1000)


def decorated() -> None:
    """A decorated function in a thread and one in a task, until standard input ends."""

    async def serve() -> None:
        letters = asyncio.create_task(wait_for_letters())
        await asyncio.to_thread(sys.stdin.read)
        letters.cancel()

    nightly = threading.Thread(target=compute_nightly)
    nightly.start()
    asyncio.run(serve())
    over.set()
    nightly.join()


SCENARIOS = {each.__name__: each for each in (decorated,)}


def main() -> None:
    assert splunk_profiler.start()
    SCENARIOS[sys.argv[1]]()
    splunk_profiler.stop(10)
    say("stopped")


if __name__ == "__main__":
    main()
