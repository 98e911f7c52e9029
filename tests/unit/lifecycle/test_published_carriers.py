"""The local root of spans that another thread has only the ids of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from opentelemetry import trace

pytest.importorskip("splunk_profiler._context")

from published_process import Ids, ids_of, provider, published_ids, publishing


@pytest.fixture
def tracer() -> Iterator[Any]:
    """Yield a tracer, and publish its spans."""
    with TemporaryDirectory(prefix="s") as path, publishing(Path(path), {"service.name": "shop"}):
        made = provider().get_tracer("t")
        with made.start_as_current_span("met"):  # later spans of the provider are heard of when they start
            pass
        yield made


def published_in_a_thread(tracer: trace.Tracer, carried: trace.Span) -> tuple[Ids | None, Ids | None, trace.Span]:
    """Return what a new thread publishes in a carrier of the ids of `carried`, and in a child of it, and the child."""
    found: list[tuple[Ids | None, Ids | None, trace.Span]] = []

    def body() -> None:
        with trace.use_span(trace.NonRecordingSpan(carried.get_span_context())):
            ids = published_ids()
            with tracer.start_as_current_span("child") as child:
                found.append((ids, published_ids(), child))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return found[0]


def test_carried_ids_have_the_root_of_their_trace_on_a_new_thread(tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("request") as root, tracer.start_as_current_span("query") as query:
        for carried in (query, root):
            ids, child_ids, child = published_in_a_thread(tracer, carried)
            assert ids == ids_of(carried, root)
            assert child_ids == ids_of(child, root)


def test_carried_ids_of_a_trace_that_comes_in_again_have_its_last_root(tracer: trace.Tracer) -> None:
    caller = trace.SpanContext(5, 6, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    remote = trace.set_span_in_context(trace.NonRecordingSpan(caller))
    for name in ("first", "second"):
        with tracer.start_as_current_span(name, context=remote) as root, tracer.start_as_current_span("query") as query:
            ids, _, _ = published_in_a_thread(tracer, query)
            assert ids == ids_of(query, root)


def test_carried_ids_of_traces_at_the_same_time_have_each_their_root(tracer: trace.Tracer) -> None:
    for _ in range(32):
        roots = [tracer.start_span("request", trace.set_span_in_context(trace.INVALID_SPAN)) for _ in range(4)]
        for root in roots:
            query = tracer.start_span("query", trace.set_span_in_context(root))
            ids, _, _ = published_in_a_thread(tracer, query)
            assert ids == ids_of(query, root)
