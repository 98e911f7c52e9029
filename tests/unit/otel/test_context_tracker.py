"""The contexts that the portable walker tracks: no span rather than one that has ended."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import opentelemetry.context as otel_context
import pytest

from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker

HERE = threading.get_ident()


@pytest.fixture
def tracker() -> Iterator[ContextTracker]:
    tracker = ContextTracker(spans.runtime_context(), lambda: None)
    tracker.install()
    yield tracker
    tracker.remove()


def _context(name: str) -> otel_context.Context:
    return otel_context.set_value("name", name, otel_context.Context())


def _name(tracker: ContextTracker) -> Any:
    context = tracker.context_of(HERE)
    return None if context is None else context["name"]


def test_nested_contexts_are_followed_in_and_out(tracker: ContextTracker) -> None:
    outer = otel_context.attach(_context("outer"))
    inner = otel_context.attach(_context("inner"))
    assert _name(tracker) == "inner"
    otel_context.detach(inner)
    assert _name(tracker) == "outer"
    otel_context.detach(outer)
    assert _name(tracker) is None


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
    assert tracker.context_of(ident) is None
