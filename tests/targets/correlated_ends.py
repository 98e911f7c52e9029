"""A service that ends or is interrupted while transactions wait for a host profiler: ``correlated_ends.py SCENE …``.

Says ``ready {…}`` in a transaction of its own, and goes on when a line arrives; the function of the scene says what it
does then. What is exported is said (see `printed_spans`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from marked_work import say
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from printed_spans import PrintingExporter, describe_span, print_profiler_log

import splunk_profiler

_NEVER_MS = 3_600_000
_ROOTS = 10
_ALARMS = 300
_BRIEFLY_MS = 100
_ALARM_S = 0.0003
_SLOWLY_S = 0.03
TRACER = trace.get_tracer("ends")  # asked for once: the SDK makes each with a lock held


class Hanging(PrintingExporter):
    """Never comes back from an export."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hang."""
        say("hangs", spans[0].name)
        threading.Event().wait()
        return super().export(spans)


class Standing(PrintingExporter):
    """An exporter that blocks on the span ``slow`` until a pipe has data."""

    def __init__(self) -> None:
        super().__init__("standing")
        self._read, self._write = os.pipe()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Say `spans`, and stand."""
        if spans[0].name == "slow":
            say("exporting")
            os.read(self._read, 1)
        return super().export(spans)

    def go_on(self) -> None:
        """Write to the pipe."""
        os.write(self._write, b"\n")


class Locking(PrintingExporter):
    """Takes its time, as for an answer from a collector, and others run while it has its lock."""

    def __init__(self, takes_s: float = 0.001) -> None:
        super().__init__("simple")
        self._takes_s = takes_s
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Say `spans`, after the others have had their turn."""
        with self._lock:
            time.sleep(self._takes_s)
            return super().export(spans)


def simple(name: str = "simple") -> SpanProcessor:
    return SimpleSpanProcessor(PrintingExporter(name))


def batch(exporter: PrintingExporter, **settings: Any) -> SpanProcessor:
    return BatchSpanProcessor(exporter, schedule_delay_millis=_NEVER_MS, **settings)


def provided(*processors: SpanProcessor, first: str = "provider", **settings: Any) -> TracerProvider:
    """A provider that has these, and the profiler runs. Who was `first` hears last of the end."""
    if first == "profiler":
        assert splunk_profiler.start()
    provider = TracerProvider(**settings)
    for processor in processors:
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    if first == "provider":
        assert splunk_profiler.start()
    return provider


def root(name: str) -> trace.Span:
    return TRACER.start_span(name, Context())


def met(name: str = "own") -> trace.Span:
    """A span in which the test has looked at the process and sent what it has to send."""
    with trace.use_span(root(name)) as span:
        say("ready", describe_span(span))
        assert sys.stdin.readline()
    return span


class UncaughtError(Exception):
    """An error that is not caught."""


def _raise_uncaught() -> None:
    raise UncaughtError


def _be_terminated() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    os.kill(os.getpid(), signal.SIGTERM)


def _be_killed() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


WAYS: dict[str, Callable[[], Any]] = {
    "return": lambda: None,
    "exit": lambda: sys.exit(3),
    "uncaught": _raise_uncaught,
    "terminated": _be_terminated,
    "killed": _be_killed,
}


def order(first: str, way: str) -> None:
    """The transaction ends, and the process after it."""
    provided(simple(), batch(PrintingExporter("batch")), first=first)
    met().end()
    WAYS[way]()


def hanging(first: str, kind: str) -> None:
    """One exporter hangs for good, the other one is but slow; many transactions end, and the process after them."""
    slow = SimpleSpanProcessor(Locking(_SLOWLY_S))
    if kind == "simple":
        provided(SimpleSpanProcessor(Hanging("dead")), slow, first=first)
    else:
        full = batch(Hanging("dead"), max_queue_size=4, max_export_batch_size=2)
        provided(full, slow, first=first, shutdown_on_exit=False)  # for which the SDK waits half a minute
    met().end()
    for number in range(_ROOTS):
        root(f"{number}").end()


def terminated(how: str) -> None:
    """The main thread is in a flush, for an exporter that stands, when a signal has it flush or shut down once more."""
    standing = Standing()
    provider = provided(SimpleSpanProcessor(standing), batch(PrintingExporter("batch")))

    def handle(*_: object) -> None:
        say("handling")
        if how == "flush":
            say("flushed", provider.force_flush(_BRIEFLY_MS))
        else:
            provider.shutdown()
        standing.go_on()
        if how == "exit":
            sys.exit(3)

    signal.signal(signal.SIGTERM, handle)
    span = met()
    root("first").end()
    root("slow").end()
    span.end()
    say("result", provider.force_flush())


def alarmed() -> None:
    """Alarms, each of which flushes, wherever the main thread is; which ends spans and flushes as well."""
    provider = provided(simple())
    span = met()
    heard = ended = 0

    def hear(*_: object) -> None:
        nonlocal heard
        heard += 1
        root(f"alarm {heard}").end()
        provider.force_flush()
        signal.setitimer(signal.ITIMER_REAL, _ALARM_S)

    signal.signal(signal.SIGALRM, hear)
    signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
    while heard < _ALARMS:
        ended += 1
        root(f"main {ended}").end()
        if ended % 10 == 0:
            provider.force_flush()
    signal.setitimer(signal.ITIMER_REAL, 0)
    span.end()
    say("ended", {"main": ended, "alarm": heard})


def green(when: str, kind: str, library: str) -> None:
    """Greenlets work in transactions; their library replaces threads and locks before or after the profiler's start."""
    green_library: Any = import_module(library)
    patch = import_module("gevent.monkey").patch_all if library == "gevent" else green_library.monkey_patch
    if when == "after":
        assert splunk_profiler.start()
    patch()

    # Where transactions wait long, a flush exports all and waits for room. What is overdue does not, on a busy machine.
    is_flushed = (when, library) == ("before", "gevent")
    processor = (
        SimpleSpanProcessor(Locking())
        if kind == "simple"
        else batch(PrintingExporter(), max_queue_size=4 if is_flushed else 1024, max_export_batch_size=2)
    )
    provider = provided(processor, first="provider" if when == "before" else "")
    span = met()

    def work(number: int) -> None:
        for turn in range(_ROOTS):
            with TRACER.start_as_current_span(f"{number}.{turn}", Context()):
                green_library.sleep(0)

    def work_at_once(numbers: Iterable[int]) -> None:
        for greenlet in [green_library.spawn(work, number) for number in numbers]:
            greenlet.join() if library == "gevent" else greenlet.wait()

    work_at_once(range(_ROOTS))
    say("flushed", provider.force_flush())
    work_at_once(range(_ROOTS, 2 * _ROOTS))
    span.end()


SCENES: dict[str, Callable[..., None]] = {
    scene.__name__: scene for scene in (order, hanging, terminated, alarmed, green)
}

if __name__ == "__main__":
    print_profiler_log()
    SCENES[sys.argv[1]](*sys.argv[2:])
