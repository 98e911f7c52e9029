"""Tests of span copies: their additions, and that all else stays as it was."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from splunk_profiler.host_profilers.annotation import (
    STACK_TRACE_IDS,
    HostId,
    copy_with_stacks,
    encode_stack_ids,
    is_transaction,
)

FIRST = bytes.fromhex("60b420bb3851d9d47acb933dbe70399b")
SECOND = bytes.fromhex("4c9326bb9805fa8f85882c12eae724ce")


def rich_span(limits: SpanLimits | None = None) -> ReadableSpan:
    """Return a span that has dropped some attributes, events and links."""
    limits = limits or SpanLimits(max_attributes=2, max_events=1, max_links=1, max_span_attribute_length=4)
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    links = [Link(SpanContext(1, number, is_remote=True)) for number in (1, 2)]
    span = provider.get_tracer("t").start_span(
        "work", kind=SpanKind.SERVER, links=links, attributes={"a": "long text", "b": 2, "c": (1, 2)}
    )
    span.add_event("first")
    span.add_event("second", {"k": "v"})
    span.set_status(Status(StatusCode.ERROR, "no"))
    span.end()
    return exporter.get_finished_spans()[0]


def test_the_example_of_the_specification() -> None:
    ids = encode_stack_ids({FIRST: 3, SECOND: 1})
    assert sorted(ids) == sorted(["YLQguzhR2dR6y5M9vnA5mw"] * 3 + ["TJMmu5gF-o-FiCwS6uckzg"])


def test_a_copy_has_the_ids_as_an_array_of_strings_beyond_every_limit() -> None:
    span = rich_span()
    made = copy_with_stacks(span, {FIRST: 2})
    assert made.attributes is not None
    assert span.attributes is not None
    assert made.attributes[STACK_TRACE_IDS] == ("YLQguzhR2dR6y5M9vnA5mw",) * 2
    assert {key: value for key, value in made.attributes.items() if key != STACK_TRACE_IDS} == dict(span.attributes)


def test_everything_else_of_the_span_stays_and_the_original_is_left_alone() -> None:
    span = rich_span()
    before = span.to_json()
    made = copy_with_stacks(span, {FIRST: 1})
    assert span.to_json() == before
    assert made is not span
    assert (made.dropped_attributes, made.dropped_events, made.dropped_links) == (
        span.dropped_attributes,
        span.dropped_events,
        span.dropped_links,
    )
    assert span.dropped_attributes == span.dropped_events == span.dropped_links == 1
    for name in ("name", "context", "parent", "kind", "events", "links", "status", "start_time", "end_time"):
        assert getattr(made, name) == getattr(span, name), name
    assert made.resource is span.resource
    assert made.instrumentation_scope == span.instrumentation_scope


def test_without_a_word_of_the_profiler_spans_keep_their_resource() -> None:
    host_id = HostId(lambda *_: None)
    span = rich_span()
    assert host_id.add_to_span(span) is span


def test_the_host_that_the_profiler_says_is_added_to_the_resource() -> None:
    host_id = HostId(lambda *_: None)
    host_id.value = "i-1"
    span = rich_span()
    made = host_id.add_to_span(span)
    assert made.resource.attributes == {"service.name": "shop", "host.id": "i-1"}
    assert "host.id" not in span.resource.attributes
    assert host_id.add_to_span(rich_span()).resource.attributes["host.id"] == "i-1"
    host_id.value = "i-2"
    assert host_id.add_to_span(span).resource.attributes["host.id"] == "i-2"


def test_a_host_id_of_the_services_own_stays_and_a_difference_is_logged() -> None:
    told = []
    host_id = HostId(lambda own, said: told.append((own, said)))
    host_id.value = "i-1"
    own, same = Resource({"host.id": "own"}), Resource({"host.id": "i-1"})
    assert host_id.resource(own) is own
    assert host_id.resource(own) is own
    assert host_id.resource(same) is same
    assert told == [("own", "i-1")]


def test_transactions_are_sampled_local_roots() -> None:
    def of(flags: int, parent: SpanContext | None) -> bool:
        span = ReadableSpan("s", context=SpanContext(1, 2, False, flags), parent=parent)  # type: ignore[arg-type]
        return bool(is_transaction(span, span.context))

    remote, local = SpanContext(1, 3, is_remote=True), SpanContext(1, 3, is_remote=False)
    assert of(1, None)
    assert of(1, remote)
    assert of(3, None)  # other flags do not matter
    assert not of(1, local)
    assert not of(0, None)
    assert not of(2, remote)
