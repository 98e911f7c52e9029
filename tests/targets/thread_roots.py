"""Threads and tasks with unusual first functions: ``thread_roots.py SCENARIO``, profiled as the environment says.

Prints the line ``ledger {…}`` with what the test of the scenario wants to know, once it and the profiler have ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from typing import Any

from marked_work import load_exporter, say

import splunk_profiler

over = threading.Event()


@splunk_profiler.labels(job="nightly")
def compute_nightly() -> None:
    while not over.is_set():
        sum(range(1_000))
        time.sleep(0.001)  # or the loop waits for the GIL for most of the time


@splunk_profiler.labels(job="letters")
async def wait_for_letters() -> None:
    await asyncio.sleep(1000)


def decorated() -> dict[str, Any]:
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
    return {}


def answer() -> None:
    time.sleep(0.3)


def in_c() -> dict[str, Any]:
    """A thread that works in C alone, while an event loop in C waits that runs a callback at last."""
    import uvloop  # noqa: PLC0415  # not there for each interpreter

    loop = uvloop.new_event_loop()
    serving = threading.Thread(target=loop.run_forever, name="loop")
    serving.start()
    began_ns = time.process_time_ns()
    keys = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 3_000_000), name="keys")
    keys.start()
    keys.join()
    used_ns = time.process_time_ns() - began_ns
    loop.call_soon_threadsafe(answer)
    loop.call_soon_threadsafe(loop.stop)
    serving.join()
    loop.close()
    return {"keys_ns": used_ns}


def now_and_then() -> dict[str, Any]:
    """A thread of C code that works for long, and then calls a function in Python now and then, which waits."""
    ended = threading.Event()

    def wait_in_python(number: int) -> None:
        time.sleep(1.5)
        if number == 1:
            ended.set()

    derive = partial(hashlib.pbkdf2_hmac, "sha256", b"", b"")
    steps = zip(map(derive, [3_000_000, 1]), map(time.sleep, repeat(2.5)), map(wait_in_python, range(2)), strict=False)
    began_ns = time.process_time_ns()
    start_new_thread(deque, (steps, 0))
    ended.wait()
    return {"cpu_ns": time.process_time_ns() - began_ns}


def compress_part() -> bytes:
    until_s = time.thread_time() + 0.02
    while time.thread_time() < until_s:
        pass
    return b"part"


def authorize() -> None:
    time.sleep(0.5)


def given_to_grpc() -> dict[str, Any]:
    """Functions that gRPC calls on threads of its own: the iterator of a stream, and an interceptor."""
    import grpc  # noqa: PLC0415  # after the profiler's exporter

    waited_ns = 0

    class Interceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types here
        def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
            nonlocal waited_ns
            began_ns = time.monotonic_ns()
            authorize()
            waited_ns += time.monotonic_ns() - began_ns
            return continuation(details)

    def upload(parts: Iterator[bytes], _context: Any) -> bytes:
        return b"".join(parts)

    handler = grpc.method_handlers_generic_handler("shop", {"Upload": grpc.stream_unary_rpc_method_handler(upload)})
    server = grpc.server(ThreadPoolExecutor(1), [handler], [Interceptor()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = channel.stream_unary("/shop/Upload")(compress_part() for _ in range(50))
    server.stop(None)
    return {"bytes": len(answer), "waited_ns": waited_ns}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each for each in (decorated, in_c, now_and_then, given_to_grpc)
}


def main() -> None:
    load_exporter()
    assert splunk_profiler.start()
    facts = SCENARIOS[sys.argv[1]]()
    splunk_profiler.stop(10)
    say("ledger", facts)


if __name__ == "__main__":
    main()
