"""A service with many threads that forks while it is profiled: ``forks.py HOW [COUNT]``.

HOW is ``os.fork``, ``thread`` (a fork by another thread than the main one), ``fork``, ``forkserver`` or
``spawn`` (of multiprocessing). Prints ``ready``; forks when the line ``fork`` arrives on standard input; each
child says who it is (``child {…}``) and what its span is. Children of `os.fork` work until the parent ends
them, those of multiprocessing for a moment only. A second line ends it all.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import sys
import threading
from typing import Any

from marked_work import LEDGER, say, wait, work
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

_THREADS = 16
_EARLY_SPAN, _CHILD_SPAN = 89, 90
_EARLY_TURNS, _LAST_TURNS = 300, 100

trace.set_tracer_provider(TracerProvider(resource=Resource.create({"set.in.code": "yes", "process.pid": 1})))
splunk_profiler.start()  # at import, as in a module of a service: spawned children come by here as well


def _serve(worker: int) -> None:
    with LEDGER.span(worker):
        while True:
            work(worker)
            for _ in range(100):
                wait(worker)


def _introduce(span: trace.Span) -> None:
    context = span.get_span_context()
    facts = {"pid": os.getpid(), "trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    say("child", facts)


def short_life() -> None:
    """Body of a process of multiprocessing; what it introduces is the last that it does."""
    for number, turns in ((_EARLY_SPAN, _EARLY_TURNS), (_CHILD_SPAN, _LAST_TURNS)):
        with LEDGER.span(number) as span:
            if number == _CHILD_SPAN:
                _introduce(span)
            for _ in range(turns):
                wait(number)


def _work_until_closed(pipe: int) -> None:
    """Body of a forked child, in the thread that forked: never returns."""
    status = 1
    try:
        with LEDGER.span(_CHILD_SPAN) as span:
            _introduce(span)
            while not select.select([pipe], [], [], 0)[0]:
                wait(_CHILD_SPAN)
        status = 0
    finally:
        os._exit(status)


def _fork_all(count: int) -> None:
    pipe, kept = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(kept)
            _work_until_closed(pipe)
        children.append(child)
    say("forked")
    sys.stdin.readline()
    os.close(kept)
    say("statuses", [os.waitpid(child, 0)[1] for child in children])


def main(how: str, count: int) -> None:
    for worker in range(_THREADS):
        threading.Thread(target=_serve, args=(worker,), daemon=True).start()
    say("ready", os.getpid())
    sys.stdin.readline()
    if how == "os.fork":
        _fork_all(count)
    elif how == "thread":
        forking = threading.Thread(target=_fork_all, args=(count,))
        forking.start()
        forking.join()
    else:
        context: Any = multiprocessing.get_context(how)
        children = [context.Process(target=short_life) for _ in range(count)]
        for child in children:
            child.start()
        say("forked")
        for child in children:
            child.join()
        say("statuses", [child.exitcode for child in children])
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
