"""Allocates on two threads, in a span with labels, and keeps a part of it; a profiled process that tells what it did.

``allocating_work.py SCENARIO``. Prints the line ``ledger {…}`` once the profiler has ended; its ``hooked`` says whether
the allocators differed from the first ones: with the walker loaded, started, and stopped.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module

from allocators import allocators
from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

SIZE, COUNT, KEPT_EVERY, PAUSE_EVERY, PAUSE_S = 10_000, 4_000, 2, 50, 0.0125
KEPT: list[bytes] = []


def fill_cache() -> None:
    """Make objects, of which a part stays, at 40 MB a second at most: from 50 on their samples are fewer."""
    for number in range(COUNT):
        made = bytes(SIZE)
        hashlib.sha256(made)
        if number % PAUSE_EVERY == 0:
            time.sleep(PAUSE_S)
        if number % KEPT_EVERY == 0:
            KEPT.append(made)


def serve() -> str:
    """Fill the cache in a span with labels; return the id of the span."""
    with (
        trace.get_tracer("allocations").start_as_current_span("GET /cache") as span,
        splunk_profiler.labels(tenant="acme"),
    ):
        fill_cache()
    return f"{span.get_span_context().span_id:016x}"


def in_thread(work: Callable[[], object]) -> None:
    """Run `work` on a thread of its own."""
    thread = threading.Thread(target=work, name="shop")
    thread.start()
    thread.join()


def once() -> dict[str, object]:
    """Allocate on both threads."""
    in_thread(fill_cache)
    return {"span": serve(), "bytes": 2 * COUNT * sys.getsizeof(KEPT[0]), "kept": sum(map(sys.getsizeof, KEPT))}


def freed() -> dict[str, object]:
    """Free all that was kept, on another thread."""
    span = serve()
    in_thread(KEPT.clear)
    return {"span": span, "bytes": COUNT * SIZE, "kept": 0}


def forked(fork: Callable[[], int]) -> dict[str, object]:
    """Allocate in a parent and its child."""
    fill_cache()
    child = fork()
    KEPT.clear()
    hashlib.pbkdf2_hmac("sha256", b"basket", b"salt", 1_000_000)  # a process that ends at once exports nothing
    span = serve()
    if child == 0:
        splunk_profiler.stop(10)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return {"span": span, "child": child, "status": status, "kept": sum(map(sys.getsizeof, KEPT))}


def main() -> None:
    """Run a scenario under the profiler."""
    assert "splunk_profiler._walker" not in sys.modules
    first, hooked = allocators(), []
    import_module("splunk_profiler._walker")
    hooked.append(allocators() != first)
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    hooked.append(allocators() != first)
    scenarios: dict[str, Callable[[], dict[str, object]]] = {
        "once": once,
        "freed": freed,
        "forked": lambda: forked(os.fork),
        "forked_in_c": lambda: forked(ctypes.PyDLL(None).fork),
    }
    ledger = scenarios[sys.argv[1]]()
    splunk_profiler.stop(10)
    hooked.append(allocators() != first)
    say("ledger", {**ledger, "hooked": hooked})


if __name__ == "__main__":
    main()
