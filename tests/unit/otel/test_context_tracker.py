"""The contexts that the portable walker tracks: no span rather than one that has ended."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import Token
from importlib.util import find_spec
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import opentelemetry.context as otel_context
import pytest
from interrupted_lines import is_interrupted_by_signal
from opentelemetry import trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from splunk_profiler.otel import context_tracker, spans
from splunk_profiler.otel.context_tracker import ContextTracker
from splunk_profiler.system import context_values

HERE = threading.get_ident()


@pytest.fixture
def tracker() -> Iterator[ContextTracker]:
    tracker = ContextTracker(spans.runtime_context(), spans.context_variable(), lambda: None)
    tracker.install()
    yield tracker
    tracker.remove()


def _context(name: str) -> otel_context.Context:
    return otel_context.set_value("name", name, otel_context.Context())


def _name(tracker: ContextTracker) -> Any:
    context = tracker.value_of(HERE)
    return None if context is None else context["name"]


def test_nested_contexts_are_followed_in_and_out(tracker: ContextTracker) -> None:
    outer = otel_context.attach(_context("outer"))
    inner = otel_context.attach(_context("inner"))
    assert _name(tracker) == "inner"
    otel_context.detach(inner)
    assert _name(tracker) == "outer"
    otel_context.detach(outer)
    assert _name(tracker) is None


class CopyingContext(ContextVarsRuntimeContext):
    """A holder of the current context that makes it anew at each call, as that of dd-trace-py does."""

    def get_current(self) -> otel_context.Context:
        span = trace.get_current_span(super().get_current()).get_span_context()
        return trace.set_span_in_context(trace.NonRecordingSpan(span), otel_context.Context())


def test_outer_span_is_found_where_each_call_makes_a_new_context() -> None:
    runtime = CopyingContext()
    tracker = ContextTracker(runtime, None, lambda: None)
    tracker.install()

    def attach(span_id: int) -> Token[otel_context.Context]:
        span = trace.NonRecordingSpan(trace.SpanContext(trace_id=1, span_id=span_id, is_remote=False))
        return runtime.attach(trace.set_span_in_context(span, otel_context.Context()))

    def span_id() -> int:
        return trace.get_current_span(tracker.value_of(HERE) or otel_context.Context()).get_span_context().span_id

    outer = attach(1)
    for number in range(2, 1000):  # more than are kept of those that are not detached
        inner = attach(number)
        assert span_id() == number
        runtime.detach(inner)
        assert span_id() == 1
    runtime.detach(outer)
    assert span_id() == 0


def test_a_caller_who_imported_attach_early_is_seen(tracker: ContextTracker) -> None:
    attach, detach = otel_context.attach, otel_context.detach
    token = attach(_context("early"))
    assert _name(tracker) == "early"
    detach(token)


def test_two_tasks_that_overlap_leave_nothing_behind(tracker: ContextTracker) -> None:
    first, second = contextvars.Context(), contextvars.Context()
    one = first.run(otel_context.attach, _context("first"))
    two = second.run(otel_context.attach, _context("second"))
    first.run(otel_context.detach, one)
    assert _name(tracker) is None
    second.run(otel_context.detach, two)
    assert _name(tracker) is None


def test_a_task_that_waits_leaves_its_context_to_no_other_task(tracker: ContextTracker) -> None:
    found: dict[str, Any] = {}

    async def hold_context(attached: asyncio.Event, over: asyncio.Event) -> None:
        token = otel_context.attach(_context("held"))
        attached.set()
        await over.wait()
        found["holder"] = _name(tracker)
        otel_context.detach(token)

    async def main() -> None:
        attached, over = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(hold_context(attached, over))
        await attached.wait()
        found["other"] = _name(tracker)
        over.set()
        await holder

    asyncio.run(main())
    assert found == {"other": None, "holder": "held"}
    assert _name(tracker) is None


def test_tasks_that_wait_in_nested_contexts_keep_their_outer_one(tracker: ContextTracker) -> None:
    found = []

    async def nest(number: int) -> None:
        outer = otel_context.attach(_context(f"outer {number}"))
        await asyncio.sleep(0)
        inner = otel_context.attach(_context("inner"))
        await asyncio.sleep(0)
        otel_context.detach(inner)
        found.append(_name(tracker))
        otel_context.detach(outer)

    async def main() -> None:
        await asyncio.gather(*map(nest, range(300)))

    asyncio.run(main())
    assert found == [f"outer {number}" for number in range(300)]


def test_thread_is_in_no_task_that_another_one_runs_in_the_same_loop(tracker: ContextTracker) -> None:
    loop, attached, over = asyncio.new_event_loop(), threading.Event(), threading.Event()

    async def attach(name: str) -> None:
        token = otel_context.attach(_context(name))
        if name == "theirs":
            attached.set()
            over.wait(60)
        otel_context.detach(token)

    loop.run_until_complete(attach("ours"))
    other = threading.Thread(target=lambda: loop.run_until_complete(attach("theirs")))
    other.start()
    attached.wait(60)
    found = [tracker.value_of(ident) for ident in (HERE, other.ident or 0)]
    over.set()
    other.join()
    loop.close()
    assert [context and context["name"] for context in found] == [None, "theirs"]


def test_a_context_in_trio_is_missing_rather_than_wrong(
    tracker: ContextTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = otel_context.attach(_context("outer"))
    monkeypatch.setitem(sys.modules, "trio", SimpleNamespace(lowlevel=SimpleNamespace(in_trio_run=lambda: True)))
    inner = otel_context.attach(_context("inner"))
    assert _name(tracker) is None
    otel_context.detach(inner)
    monkeypatch.delitem(sys.modules, "trio")
    otel_context.detach(outer)
    assert _name(tracker) is None


def test_an_attach_looks_at_the_own_value_only(tracker: ContextTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(tracker, "value_of", looked_at.append)
    otel_context.detach(otel_context.attach(_context("own")))
    assert not looked_at


@pytest.mark.usefixtures("tracker")
def test_an_error_of_the_tracker_does_not_reach_the_application(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise ValueError("ours")

    monkeypatch.setitem(sys.modules, "trio", SimpleNamespace(lowlevel=SimpleNamespace(in_trio_run=fail)))
    with caplog.at_level(logging.WARNING):
        token = otel_context.attach(_context("attached"))
        assert otel_context.get_value("name") == "attached"
        otel_context.detach(token)
    assert otel_context.get_value("name") is None
    (logged,) = caplog.messages
    assert "an error in recording a context was caught" in logged


@pytest.mark.usefixtures("tracker")
@pytest.mark.parametrize("module", [context_tracker, context_values])
def test_exception_of_a_signal_handler_reaches_the_application(module: ModuleType) -> None:
    def work() -> None:
        runtime = spans.runtime_context()  # OpenTelemetry's own `detach` swallows every exception
        runtime.detach(runtime.attach(_context("attached")))

    lines = next(line for line in count(1) if not is_interrupted_by_signal(work, module, line))
    assert lines > 5


def test_a_worker_that_ran_in_a_copied_context_does_not_keep_it(tracker: ContextTracker) -> None:
    request = contextvars.Context()
    request.run(otel_context.attach, _context("request"))
    tracker.remove()
    tracker.install()

    def handler() -> None:
        otel_context.detach(otel_context.attach(_context("query")))

    request.copy().run(handler)
    assert _name(tracker) is None


def test_a_detach_that_fails_leaves_no_span_behind(tracker: ContextTracker) -> None:
    token = contextvars.Context().run(otel_context.attach, _context("elsewhere"))
    otel_context.detach(token)  # logged by OpenTelemetry, which does not raise
    assert _name(tracker) is None


def test_contexts_that_are_never_detached_do_not_fill_memory(tracker: ContextTracker) -> None:
    def body() -> None:
        for number in range(10_000):
            spans.runtime_context().attach(_context(str(number)))

    thread = threading.Thread(target=body)
    thread.start()
    ident = thread.ident or 0
    thread.join()
    assert tracker.value_of(ident) is None


_GREENLETS = """
import sys
from importlib import import_module
from opentelemetry import context as otel_context
if sys.argv[1] == "patched first":
    import_module("gevent.monkey").patch_all()
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker
tracker = ContextTracker(spans.runtime_context(), spans.context_variable(), lambda: None)
tracker.install()
import_module("gevent.monkey").patch_all()
import gevent

here = gevent.monkey.get_original("_thread", "get_ident")()

def check(expected):
    context = tracker.value_of(here)
    assert (None if context is None else context["name"]) == expected, (context, expected)

def hold(name):
    token = otel_context.attach(otel_context.set_value("name", name))
    for _ in range(3):
        check(name)
        gevent.sleep(0)
    otel_context.detach(token)
    check(None)

def nest(number):
    outer = otel_context.attach(otel_context.set_value("name", number))
    gevent.sleep(0)
    inner = otel_context.attach(otel_context.set_value("name", "inner"))
    gevent.sleep(0)
    check("inner")
    otel_context.detach(inner)
    check(number)
    otel_context.detach(outer)

def have_none():
    for _ in range(5):
        check(None)
        gevent.sleep(0)

gevent.joinall([gevent.spawn(hold, "first"), gevent.spawn(hold, "second"), gevent.spawn(have_none)], raise_error=True)
gevent.joinall([gevent.spawn(nest, number) for number in range(300)], raise_error=True)
ended = gevent.spawn(otel_context.attach, otel_context.set_value("name", "ended"))
ended.join()
check(None)
"""


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
@pytest.mark.parametrize("order", ["patched first", "tracked first"])
def test_a_greenlet_has_its_own_context_and_not_that_of_one_that_waits(order: str) -> None:
    command = [sys.executable, "-c", _GREENLETS, order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
