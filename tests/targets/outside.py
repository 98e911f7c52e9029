"""Work that changes spans all the time, and writes down the truth for who looks from outside: ``outside.py HOW FILE``.

HOW is ``threads`` (8), ``asyncio`` or ``uvloop`` (200 tasks in one thread) or ``gevent`` (200 greenlets). FILE is
shared memory: a slot of 64 bytes for each thread that works. In it: the thread's id; a number that is odd while the
rest is being written, and changes with it; the ids of the span that the work of this moment is in, trace (16 bytes),
span and local root (8 each). All zero is "in no span", all ones is "in between". Says ``ready`` and the number of
slots, and once a line arrives how many threads an audit has ``repaired``; works until it is killed.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from marked_work import say
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler
from splunk_profiler import _context

_AUDITS = 500
_THREADS, _TASKS = 8, 200
_BETWEEN = struct.pack("=16s8s8s", b"\xff" * 16, b"\xff" * 8, b"\xff" * 8)
_NOWHERE = bytes(32)
trace.set_tracer_provider(TracerProvider())
TRACER = trace.get_tracer("outside")


class Slot:
    """The truth about one thread."""

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        self._memory, self._at, self._turn = memory, 64 * index, 0
        struct.pack_into("=Q", memory, self._at, threading.get_native_id())

    def write(self, ids: bytes) -> None:
        """From now on this is true."""
        self._turn += 2
        struct.pack_into("=Q", self._memory, self._at + 8, self._turn - 1)
        self._memory[self._at + 16 : self._at + 48] = ids
        struct.pack_into("=Q", self._memory, self._at + 8, self._turn)

    def work(self, ids: bytes, rounds: int = 5000) -> None:
        """Work for which this is true, and after which it need not be."""
        self.write(ids)
        for _ in range(rounds):
            pass
        self.write(_BETWEEN)


def _ids(span: trace.Span, root: trace.Span) -> bytes:
    own, local_root = span.get_span_context(), root.get_span_context()
    numbers = ((own.trace_id, 16), (own.span_id, 8), (local_root.span_id, 8))
    return b"".join(number.to_bytes(size, "big") for number, size in numbers)


def _serve(slot: Slot, pause: Any) -> None:
    """One request: nested spans, and a pause in which others may run in this thread. `pause` may be a no-op."""
    with TRACER.start_as_current_span("root", Context()) as root:
        slot.work(_ids(root, root))
        pause()
        slot.work(_ids(root, root))
        with TRACER.start_as_current_span("inner") as inner, splunk_profiler.labels(work="inner"):
            slot.work(_ids(inner, root))
            pause()
            slot.work(_ids(inner, root))
    slot.work(_NOWHERE)


async def _task(slot: Slot) -> None:
    while True:
        with TRACER.start_as_current_span("root", Context()) as root:
            slot.work(_ids(root, root))
            await asyncio.sleep(0)
            slot.work(_ids(root, root))
            with TRACER.start_as_current_span("inner") as inner, splunk_profiler.labels(work="inner"):
                await asyncio.sleep(0)
                slot.work(_ids(inner, root))
        slot.work(_NOWHERE)
        await asyncio.sleep(0)


async def _tasks(slot: Slot) -> None:
    await asyncio.gather(*(_task(slot) for _ in range(_TASKS)))


def _loop(slot: Slot, pause: Any) -> None:
    while True:
        _serve(slot, pause)


def _thread(memory: mmap.mmap, index: int, all_there: threading.Barrier) -> None:
    slot = Slot(memory, index)
    all_there.wait()
    _loop(slot, lambda: None)


def _work_in_threads(memory: mmap.mmap) -> None:
    all_there = threading.Barrier(_THREADS + 1)
    for index in range(_THREADS):
        threading.Thread(target=_thread, args=(memory, index, all_there), daemon=True).start()
    all_there.wait()
    say("ready", _THREADS)
    threading.Event().wait()


def _work_in_one_thread(memory: mmap.mmap, how: str) -> None:
    slot = Slot(memory, 0)
    loop: Any = import_module(how)
    say("ready", 1)
    if how == "gevent":
        loop.joinall([loop.spawn(_loop, slot, lambda: loop.sleep(0)) for _ in range(_TASKS)])
    else:
        loop.new_event_loop().run_until_complete(_tasks(slot))


def _audit_when_told() -> None:
    """How many threads were ever found to show something else than their context."""
    sys.stdin.readline()
    for _ in range(_AUDITS):
        _context.audit()
        time.sleep(0)
    say("repaired", _context.counters().repaired)


def main(how: str, path: Path) -> None:
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 4096)
    splunk_profiler.start()
    threading.Thread(target=_audit_when_told, daemon=True).start()
    if how == "threads":
        _work_in_threads(memory)
    else:
        _work_in_one_thread(memory, how)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
