"""The local root and endpoint of sampled spans, on the SDK's own spans."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from interrupted_lines import is_interrupted_by_signal
from opentelemetry import trace
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.model import Event, SpanRef, Stack
from splunk_profiler.otel import local_roots
from splunk_profiler.otel.local_roots import LocalRootTracker
from splunk_profiler.raw import RawEvent, RawThread

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


class Spans:
    """A provider with a `LocalRootTracker`.

    Attributes:
        kept: published local roots: span id → local root.
    """

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.roots = LocalRootTracker(lambda span: self.kept.get(span.get_span_context().span_id))
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("test")
        self.roots.attach(self.provider)

    def start(self, name: str, parent: trace.Span | None = None) -> trace.Span:
        return self.tracer.start_span(name, trace.set_span_in_context(parent or trace.INVALID_SPAN))

    def from_outside(self, name: str, span_id: int = 0xABC) -> trace.Span:
        remote = trace.SpanContext(TRACE, span_id, is_remote=True, trace_flags=trace.TraceFlags(1))
        return self.start(name, trace.NonRecordingSpan(remote))

    def ref(self, span: trace.Span) -> SpanRef:
        found = self.roots.span_ref(trace.set_span_in_context(span))
        assert found is not None
        assert (found.trace_id, found.span_id) == (span.get_span_context().trace_id, id_of(span))
        return found


def id_of(span: Any) -> int:
    return int(span.get_span_context().span_id)


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.roots.detach()


def test_all_spans_of_a_trace_have_the_root_with_which_it_began_here(spans: Spans) -> None:
    root = spans.start("GET")
    child = spans.start("query", root)
    grandchild = spans.start("parse", child)
    for span in (root, child, grandchild):
        assert (spans.ref(span).local_root_id, spans.ref(span).endpoint) == (id_of(root), "GET")


def test_a_span_whose_parent_is_in_another_process_is_a_local_root(spans: Spans) -> None:
    root = spans.from_outside("POST /orders")
    child = spans.start("insert", root)
    assert (spans.ref(child).local_root_id, spans.ref(child).endpoint) == (id_of(root), "POST /orders")


def test_the_name_is_that_of_the_moment_and_after_the_end_the_last_one(spans: Spans) -> None:
    root = spans.start("GET")
    child = spans.start("query", root)
    root.update_name("GET /cart/{id}")
    assert spans.ref(child).endpoint == "GET /cart/{id}"
    assert spans.roots.current_name(id_of(root)) == ("GET /cart/{id}", False)
    root.end()
    assert spans.ref(child).endpoint == "GET /cart/{id}"
    assert spans.roots.current_name(id_of(root)) == ("GET /cart/{id}", True)
    assert spans.roots.current_name(id_of(root)) == ("", True)


def test_name_without_end_is_cut(spans: Spans) -> None:
    root = spans.start("x" * (4 << 20))
    assert spans.ref(root).endpoint == spans.roots.current_name(id_of(root))[0] == "x" * 4095 + "…"


def test_trace_that_comes_in_twice_has_two_roots(spans: Spans) -> None:
    roots = spans.from_outside("first", 1), spans.from_outside("second", 2)
    roots[0].end()
    for root, name in zip(roots, ("first", "second"), strict=True):
        for span in (root, spans.start("child", root), spans.start("grandchild", spans.start("child", root))):
            assert (spans.ref(span).local_root_id, spans.ref(span).endpoint) == (id_of(root), name)


def test_parent_that_only_carries_ids_gives_a_root_only_where_it_was_kept(spans: Spans) -> None:
    root = spans.start("GET")
    child = spans.start("child", trace.NonRecordingSpan(root.get_span_context()))
    assert (spans.ref(child).local_root_id, spans.ref(child).endpoint) == (0, "")
    spans.kept = {id_of(child): id_of(root)}
    assert (spans.ref(child).local_root_id, spans.ref(child).endpoint) == (id_of(root), "")
    spans.ref(root)
    assert (spans.ref(child).local_root_id, spans.ref(child).endpoint) == (id_of(root), "GET")


def test_processors_that_are_called_on_other_threads_give_no_wrong_root(spans: Spans) -> None:
    provider = TracerProvider(shutdown_on_exit=False, active_span_processor=ConcurrentMultiSpanProcessor())
    spans.roots.attach(provider)
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("root") as root, tracer.start_as_current_span("child") as child:
        assert spans.ref(root).local_root_id == id_of(root)
        assert spans.ref(child).local_root_id == 0
    provider.shutdown()


def test_a_root_that_was_there_before_is_known(spans: Spans) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    root = provider.get_tracer("test").start_span("early")
    spans.roots.attach(provider)
    child = provider.get_tracer("test").start_span("child", trace.set_span_in_context(root))
    assert (spans.ref(child).local_root_id, spans.ref(child).endpoint) == (id_of(root), "early")
    root.update_name("later")
    assert spans.ref(child).endpoint == "later"
    spans.roots.detach()


def test_what_comes_from_another_process_as_it_is_has_no_root_here(spans: Spans) -> None:
    root = spans.from_outside("GET")
    remote = trace.SpanContext(TRACE, 0xABC, is_remote=True, trace_flags=trace.TraceFlags(1))
    assert spans.ref(root).local_root_id == id_of(root)
    assert spans.ref(trace.NonRecordingSpan(remote)).local_root_id == 0


def test_a_span_that_is_not_sampled_has_no_root_but_where_it_was_kept(spans: Spans) -> None:
    span = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test").start_span("dropped")
    assert spans.ref(span).local_root_id == 0
    spans.kept = {id_of(span): 77}
    assert spans.ref(span).local_root_id == 77


def test_no_span_no_answer(spans: Spans) -> None:
    assert spans.roots.span_ref({}) is None


@pytest.mark.parametrize("is_publishing", [False, True])
def test_root_is_known_while_it_lives_however_many_others_come_and_go(spans: Spans, is_publishing: bool) -> None:
    root = spans.start("slow")
    child = spans.start("query", root)
    if is_publishing:
        spans.kept = {id_of(child): id_of(root)}
    for _ in range(5000):
        spans.start("quick").end()
    assert (spans.ref(child).local_root_id, spans.ref(child).endpoint) == (id_of(root), "slow")


def test_root_sampled_after_its_end_takes_no_place_of_a_living_one(spans: Spans) -> None:
    root, living = spans.start("gone"), spans.start("living")
    root.end()
    for _ in range(5000):
        spans.start("quick").end()
    assert spans.ref(root).endpoint == "gone", "what a task that outlives its request has as its context"
    for _ in range(10_000):
        spans.ref(root)
        spans.start("quick").end()
    assert spans.ref(spans.start("child", living)).endpoint == "living"


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(spans: Spans) -> None:
    sampled = [spans.start(f"sampled {number}") for number in range(5000)]
    for root in sampled:
        spans.ref(root)
    assert spans.roots.current_name(id_of(sampled[0])) == ("", True)
    assert spans.roots.current_name(id_of(sampled[-1])) == ("sampled 4999", False)


def test_spans_that_have_ended_are_not_kept(spans: Spans) -> None:
    root = spans.start("GET")
    child = spans.start("query", root)
    ended = weakref.ref(root)
    spans.ref(child)
    child.end()
    root.end()
    assert spans.roots.current_name(id_of(root)) == ("GET", True)
    del child, root
    assert ended() is None


def test_root_that_was_active_at_a_new_beginning_is_not_kept(spans: Spans) -> None:
    contexts = ContextReader(spans.roots.span_ref, endpoint_of=spans.roots.current_name)
    recorder = StreamRecorder(contexts, is_native=False)
    root = spans.start("GET")
    ended = weakref.ref(root)
    thread = RawThread(1, 2, 3, Stack((), truncated=False), trace.set_span_in_context(root), None, 0)
    recorder.record_event(RawEvent(0, thread, Event(GC_KIND, (), 1, 1)))
    recorder.restart()
    root.end()
    recorder.record_endpoints()
    del root, thread
    assert ended() is None


def test_exception_of_a_signal_handler_reaches_who_starts_a_span(spans: Spans) -> None:
    root = spans.start("GET")
    lines = next(
        line for line in count(1) if not is_interrupted_by_signal(lambda: spans.start("query", root), local_roots, line)
    )
    assert lines > 5


class Counting(LocalRootTracker):
    """A tracker that counts spans."""

    heard = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.heard += 1
        super().on_start(span, parent_context)


def test_a_provider_is_met_once_and_left_as_it_was() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    roots = Counting(lambda _: None)
    for _ in range(3):
        roots.attach(provider)
    provider.get_tracer("test").start_span("heard")
    assert roots.heard == 1
    roots.detach()
    provider.get_tracer("test").start_span("unheard")
    assert roots.heard == 1


def test_a_provider_that_takes_no_processors_is_left_alone() -> None:
    roots = LocalRootTracker(lambda _: None)
    roots.attach(trace.NoOpTracerProvider())
    roots.attach(None)
    roots.detach()
