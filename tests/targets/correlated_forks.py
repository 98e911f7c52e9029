"""A service that forks while its transactions wait for a host profiler: ``correlated_forks.py HOW COUNT``.

HOW is ``prefork`` (COUNT children at once, in which everything happens that happens in the parent), ``one-by-one``
(COUNT children after each other, each of which lives until it is told to end), or ``fork``, ``forkserver`` or ``spawn``
(of multiprocessing). Says ``ready {…}``, and forks when it is told to. Every process says who it is and in which span
(``child {…}``), and what it exports (see `printed_spans`).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from marked_work import say
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from printed_spans import PrintingExporter, describe_span, print_profiler_log

import splunk_profiler

_NEVER_MS = 3_600_000

print_profiler_log()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(PrintingExporter()))
PROVIDER.add_span_processor(BatchSpanProcessor(PrintingExporter("batch"), schedule_delay_millis=_NEVER_MS))
trace.set_tracer_provider(PROVIDER)
TRACER = trace.get_tracer("forks")
assert splunk_profiler.start()  # at import, as in a module of a service: spawned children come by here as well


def root(name: str) -> trace.Span:
    return TRACER.start_span(name, Context())


def _work_until_closed(pipe: int, inherited: trace.Span) -> None:
    """The life of a child of `prefork`; never returns."""
    status = 1
    try:
        root("early").end()
        span = root("own")
        with trace.use_span(span):  # readers see it
            say("child", describe_span(span))
            os.read(pipe, 1)
        span.end()
        inherited.end()
        assert PROVIDER.force_flush()
        splunk_profiler.stop()
        status = 0
    finally:
        os._exit(status)


def _prefork(count: int) -> None:
    span = root("own")
    say("ready", describe_span(span))
    assert sys.stdin.readline()
    root("waits while it is forked").end()
    open_at_the_fork = root("open while it is forked")
    pipe, kept = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(kept)
            _work_until_closed(pipe, open_at_the_fork)
        children.append(child)
    say("forked")
    assert sys.stdin.readline()
    os.close(kept)
    say("statuses", [os.waitpid(child, 0)[1] for child in children])
    open_at_the_fork.end()
    span.end()
    assert PROVIDER.force_flush()


def _one_by_one(count: int) -> None:
    with trace.use_span(root("own")) as span:
        say("ready", describe_span(span))
        assert sys.stdin.readline()
        for _ in range(count):
            child = os.fork()
            if child == 0:
                say("child", describe_span(span))
                os.read(0, 1)  # not of the parent's buffer
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            say("ended", child)
    say("done")
    assert sys.stdin.readline()


def short_life(told: Any) -> None:
    """Body of a process of multiprocessing; it ends without a flush."""
    span = root("own")
    say("child", describe_span(span))
    assert told.wait(60)
    span.end()


def _multiprocess(how: str, count: int) -> None:
    span = root("own")
    say("ready", describe_span(span))
    assert sys.stdin.readline()
    context: Any = multiprocessing.get_context(how)
    told = context.Event()
    children = [context.Process(target=short_life, args=(told,)) for _ in range(count)]
    for child in children:
        child.start()
    say("forked")
    assert sys.stdin.readline()
    told.set()
    for child in children:
        child.join()
    say("statuses", [child.exitcode for child in children])
    span.end()
    assert PROVIDER.force_flush()


def main(how: str, count: int) -> None:
    if how == "prefork":
        _prefork(count)
    elif how == "one-by-one":
        _one_by_one(count)
    else:
        _multiprocess(how, count)
    say("end")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
