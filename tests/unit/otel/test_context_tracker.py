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
def shadow() -> Iterator[ContextTracker]:
    shadow = ContextTracker(spans.runtime_context(), lambda: None)
    shadow.install()
    yield shadow
    shadow.remove()


def _context(name: str) -> otel_context.Context:
    return otel_context.set_value("name", name, otel_context.Context())


def _name(shadow: ContextTracker) -> Any:
    context = shadow.context_of(HERE)
    return None if context is None else context["name"]


def test_nested_contexts_are_followed_in_and_out(shadow: ContextTracker) -> None:
    outer = otel_context.attach(_context("outer"))
    inner = otel_context.attach(_context("inner"))
    assert _name(shadow) == "inner"
    otel_context.detach(inner)
    assert _name(shadow) == "outer"
    otel_context.detach(outer)
    assert _name(shadow) is None


def test_a_caller_who_imported_attach_early_is_seen(shadow: ContextTracker) -> None:
    attach, detach = otel_context.attach, otel_context.detach
    token = attach(_context("early"))
    assert _name(shadow) == "early"
    detach(token)


def test_two_tasks_that_overlap_leave_nothing_behind(shadow: ContextTracker) -> None:
    first, second = contextvars.Context(), contextvars.Context()
    one = first.run(otel_context.attach, _context("first"))
    two = second.run(otel_context.attach, _context("second"))
    first.run(otel_context.detach, one)
    assert _name(shadow) is None
    second.run(otel_context.detach, two)
    assert _name(shadow) is None


def test_a_worker_that_ran_in_a_copied_context_does_not_keep_it(shadow: ContextTracker) -> None:
    request = contextvars.Context()
    request.run(otel_context.attach, _context("request"))
    shadow.remove()
    shadow.install()

    def handler() -> None:
        otel_context.detach(otel_context.attach(_context("query")))

    request.copy().run(handler)
    assert _name(shadow) is None


def test_a_detach_that_fails_leaves_no_span_behind(shadow: ContextTracker) -> None:
    token = contextvars.Context().run(otel_context.attach, _context("elsewhere"))
    otel_context.detach(token)  # logged by OpenTelemetry, which does not raise
    assert _name(shadow) is None


def test_contexts_that_are_never_detached_do_not_fill_memory(shadow: ContextTracker) -> None:
    def body() -> None:
        for number in range(10_000):
            spans.runtime_context().attach(_context(str(number)))

    thread = threading.Thread(target=body)
    thread.start()
    ident = thread.ident or 0
    thread.join()
    assert shadow.context_of(ident) is None
