"""Tasks that wait: ``waiting_tasks.py SCENARIO SECONDS [uvloop]``, profiled as the environment says.

Prints the line ``ledger {…}`` with the spans that there were and what the test of the scenario wants to know.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any

import anyio
from marked_work import LEDGER
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

MANY = 10_000
served_s: dict[str, float] = {}  # by thread
Waiter = Callable[[], Coroutine[Any, Any, None]]


async def _wait() -> None:
    await asyncio.sleep(1000)


async def _wait_in_anyio() -> None:
    await anyio.sleep(1000)


async def _wait_for_a_thread() -> None:
    await asyncio.to_thread(time.sleep, SECONDS)


def task(number: int, body: Waiter = _wait) -> Coroutine[Any, Any, None]:
    """Return a coroutine that waits in ``wait_in_span_<number>``, in that span and with a label."""
    code = body.__code__.replace(co_name=f"wait_in_span_{number:02}")
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=code.co_name)
    wait = FunctionType(code, globals(), code.co_name)

    async def in_span() -> None:
        with LEDGER.span(number), splunk_profiler.labels(number=number):
            await wait()

    return in_span()


async def gathering() -> None:
    await asyncio.gather(task(2), task(3))


async def grouping() -> None:
    async with getattr(asyncio, "TaskGroup")() as group:  # noqa: B009  # since CPython 3.11
        group.create_task(task(4))
        await task(5)


async def in_anyio() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(task, 6, _wait_in_anyio)


async def generated() -> None:
    async def yields() -> Any:
        await task(7)
        yield 1

    async for _ in yields():
        pass


async def serve(*waiting: Coroutine[Any, Any, None]) -> None:
    loop, began_s = asyncio.get_running_loop(), time.monotonic()
    tasks = [loop.create_task(each) for each in waiting]
    tasks[0].set_name("first\n" + 200 * "x")
    if sys.version_info >= (3, 12) and len(waiting) > 1:
        tasks.append(asyncio.Task(task(10), loop=loop, eager_start=True))
    await asyncio.sleep(SECONDS)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    served_s[threading.current_thread().name] = time.monotonic() - began_s


def run(waiting: Coroutine[Any, Any, None]) -> None:
    """Run a loop of the kind that the command line names."""
    if "uvloop" in sys.argv:
        import uvloop  # noqa: PLC0415  # only where it is asked for

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    loop.run_until_complete(waiting)
    loop.close()


def kinds() -> dict[str, Any]:
    """All ways to make tasks, on two loops; one loop is stopped and never goes on."""
    stopped = asyncio.new_event_loop()
    never = stopped.create_task(task(11))
    stopped.call_soon(stopped.stop)
    stopped.run_forever()
    other = threading.Thread(target=lambda: run(serve(task(9))), name="other-loop")
    other.start()
    several = [task(0), task(1), gathering(), in_anyio(), generated(), task(8, _wait_for_a_thread)]
    if sys.version_info >= (3, 11):
        several.append(grouping())
    run(serve(*several))
    other.join()
    never.cancel()
    stopped.run_until_complete(asyncio.wait([never]))
    stopped.close()
    numbers = {*range(4), *range(6, 10)}
    numbers |= {4, 5} if sys.version_info >= (3, 11) else set()
    numbers |= {10} if sys.version_info >= (3, 12) else set()
    return {"waiting": sorted(numbers), "seconds": served_s}


def many() -> dict[str, Any]:
    """Thousands of tasks."""
    facts: dict[str, Any] = {"tasks": MANY}

    async def wait_alike() -> None:
        await _wait()

    async def crowd() -> None:
        began_s = time.monotonic()
        tasks = [asyncio.create_task(wait_alike()) for _ in range(MANY)]
        await asyncio.sleep(SECONDS)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        facts["seconds"] = time.monotonic() - began_s

    run(crowd())
    return facts


def forking() -> dict[str, Any]:
    """A child that is forked by a running loop, and runs one of its own."""
    children = []

    async def fork() -> None:
        waiting = [asyncio.create_task(task(number)) for number in range(5)]
        await asyncio.sleep(0.1)
        child = os.fork()
        if child == 0:
            asyncio.set_event_loop(None)
            threading.Thread(target=lambda: run(serve(task(20)))).start()
            time.sleep(SECONDS + 0.5)
            splunk_profiler.stop(10)
            os._exit(0)
        children.append(child)
        await asyncio.to_thread(os.waitpid, child, 0)
        for each in waiting:
            each.cancel()

    run(fork())
    return {"child": children[0]}


SCENARIOS = {each.__name__: each for each in (kinds, many, forking)}
SECONDS = float(sys.argv[2])


def main() -> None:
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    facts = SCENARIOS[sys.argv[1]]()
    splunk_profiler.stop(10)
    LEDGER.dump(**facts)


if __name__ == "__main__":
    main()
