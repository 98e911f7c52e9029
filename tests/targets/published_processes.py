"""Processes that publish in different circumstances: ``published_processes.py SCENE [ARGUMENTS]``.

Says what a test has to see as lines of JSON and goes on when a line arrives on standard input. Publishing is started by
the scene, with the settings of the environment.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from marked_work import say, wait_until_visible
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

TRACER = trace.get_tracer(__name__)


def seen(moment: str) -> dict[str, Any]:
    """Return the values that a host profiler must read of the calling thread."""
    context = trace.get_current_span().get_span_context()
    span_id = f"{context.span_id:016x}" if context.is_valid else ""
    return {"moment": moment, "pid": os.getpid(), "tid": threading.get_native_id(), "span_id": span_id}


def at(moment: str, *others: dict[str, Any]) -> None:
    """Stand still until the test has looked at this thread and the others."""
    say("at", [seen(moment), *others])
    assert sys.stdin.readline()


class Beside:
    """A thread that stays in a span, or in none, until the test continues."""

    def __init__(self, moment: str, spans: int = 1) -> None:
        self.told = threading.Event()
        self._ready = threading.Event()
        self._moment = moment
        self._spans = spans
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        if self._spans:
            attach(trace.set_span_in_context(TRACER.start_span(self._moment)))  # it ends inside of the span
        self.seen = seen(self._moment)
        self._ready.set()
        self.told.wait()

    def end(self) -> None:
        self.told.set()
        self._thread.join()


class Early:
    """A thread that starts before anything is published, and opens its span on command."""

    def __init__(self) -> None:
        self.open, self.ready, self.leave = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.open.wait()
        with TRACER.start_as_current_span("early"):
            self.seen = seen("a thread made before the library was loaded")
            self.ready.set()
            self.leave.wait()

    def end(self) -> None:
        self.leave.set()
        self._thread.join()


def visible() -> None:
    """Start the profiler, after all that loads modules, and wait for the command to end."""
    trace.set_tracer_provider(TracerProvider())
    import_module("splunk_profiler.lifecycle.publishing")
    import_module("splunk_profiler._context")
    say("starts")
    assert splunk_profiler.start()
    assert sys.stdin.readline()


def start() -> None:
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    wait_until_visible()


def threads() -> None:
    """Threads made before and after the libraries were loaded, and one that has no span."""
    early = Early()
    start()
    after, without = Beside("a thread made afterwards"), Beside("a thread without a span", 0)
    early.open.set()
    early.ready.wait()
    with TRACER.start_as_current_span("main"):
        at("the thread that started it", early.seen, after.seen, without.seen)
    for thread in (early, after, without):
        thread.end()


def idents() -> None:
    """Threads that end inside a span; the next one gets the same ident and the same memory, and has no span."""
    start()
    known: set[int] = set()
    reused = 0
    for _ in range(20):
        for spans in (1, 0):
            thread = Beside("with a span" if spans else "without", spans)
            ident = thread._thread.ident
            assert ident is not None
            reused += ident in known
            known.add(ident)
            at("main", thread.seen)
            thread.end()
    say("reused", reused)


def static_tls_full(*libraries: str) -> None:
    """The room for static thread-local memory is used up before publishing starts."""
    problems = []
    for library in libraries:
        try:
            ctypes.CDLL(library)
        except OSError as error:
            problems.append(str(error))
    assert problems, "there is still room"
    say("full", problems[-1])
    start()
    with TRACER.start_as_current_span("main"):
        at("in a span")


def forks() -> None:
    """A child that stands still before the profiler has noticed it, and again once it has; then its own child."""
    start()
    generation(2)


def generation(left: int) -> None:
    with TRACER.start_as_current_span(f"generation {left}"):
        beside = Beside("beside")
        at("before the fork", beside.seen)
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            at("the child is gone", beside.seen)
            beside.end()
            return
        at("in the child, in the span of the parent")
        with TRACER.start_as_current_span("the child's own"):
            thread = Beside("a thread of the child")
            at("in the child, in a span of its own", thread.seen)
            thread.end()
        if left > 1:
            generation(left - 1)
        splunk_profiler.stop()
        sys.stdout.flush()
        os._exit(0)


def halted_forks() -> None:
    """The child stands still as early as Python code runs in it: before the profiler has done anything."""
    armed = False

    def halt() -> None:
        if armed:
            at("the child is new")

    os.register_at_fork(after_in_child=halt)  # before the profiler does, so it runs before
    start()
    armed = True
    with TRACER.start_as_current_span("parent"):
        at("before the fork")
        child = os.fork()
        armed = False
        if child == 0:
            at("the child has been noticed")
            splunk_profiler.stop()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status


SCENES: dict[str, Callable[..., None]] = {
    scene.__name__: scene for scene in (visible, threads, idents, static_tls_full, forks, halted_forks)
}

if __name__ == "__main__":
    SCENES[sys.argv[1]](*sys.argv[2:])
    say("end")
