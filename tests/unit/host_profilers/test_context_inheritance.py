"""Tests of the local root of a new span: readers join samples by this transaction id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import opentelemetry.context as otel_context
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation import _SPAN_KEY

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import ATTRIBUTE, SPAN_KEY, Elastic, InstalledPublisher, OwnMemory, Span

from splunk_profiler import _context

TRACE, ROOT, CHILD = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7


def identity_of(span: Any) -> _context.Identity:
    found = getattr(span, ATTRIBUTE)
    assert isinstance(found, _context.Identity)
    return found


def test_a_span_without_a_parent_is_its_own_local_root(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    span = Span(TRACE, ROOT)
    _context.assign_identity(span)
    assert identity_of(span).local_root_id == ROOT
    token = publishing.attach(span)
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    _context.detach(token)
    assert not publishing.asked


def test_a_span_has_the_local_root_of_the_span_that_is_current(publishing: InstalledPublisher) -> None:
    root, child, grandchild = Span(TRACE, ROOT), Span(TRACE, CHILD), Span(TRACE, 3)
    _context.assign_identity(root)
    outer = publishing.attach(root)
    _context.assign_identity(child)
    inner = publishing.attach(child)
    _context.assign_identity(grandchild, None)
    _context.detach(inner)
    _context.detach(outer)
    assert [identity_of(span).local_root_id for span in (root, child, grandchild)] == [ROOT] * 3
    assert not publishing.asked


def test_the_given_parent_context_counts_and_not_the_current_one(publishing: InstalledPublisher) -> None:
    current, parent = Span(TRACE, 11), Span(TRACE, ROOT)
    _context.assign_identity(current)
    _context.assign_identity(parent)
    token = publishing.attach(current)
    for number, context, root in ((1, {SPAN_KEY: parent}, ROOT), (2, {}, 2), (3, None, 11)):
        span = Span(TRACE, number)
        _context.assign_identity(span, parent_context=context)
        assert identity_of(span).local_root_id == root
    _context.detach(token)


@pytest.mark.usefixtures("publishing")
@pytest.mark.parametrize("parent", [Span(TRACE, ROOT, is_remote=True), Span(0, 0), Span(TRACE + 1, ROOT)])
def test_remote_invalid_or_other_trace_parent_is_no_local_parent(parent: Span) -> None:
    span = Span(TRACE, CHILD)
    _context.assign_identity(span, {SPAN_KEY: parent})
    assert identity_of(span).local_root_id == CHILD


def test_a_local_parent_that_started_earlier_is_asked_about(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    parent, span, outer = Span(TRACE, 5), Span(TRACE, CHILD), Span(TRACE, 6)
    publishing.answer = lambda _: _context.Identity(TRACE, 5, ROOT, 1)
    _context.assign_identity(outer)
    token = publishing.attach(outer)
    _context.assign_identity(span, {SPAN_KEY: parent})
    assert identity_of(span).local_root_id == ROOT
    assert publishing.asked == [parent]
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, 6, 6), "what is shown is as before"
    _context.detach(token)


def test_a_parent_that_cannot_be_asked_about_is_no_parent(publishing: InstalledPublisher) -> None:
    def fail(_: Any) -> Any:
        raise RecursionError

    publishing.answer = fail
    span = Span(TRACE, CHILD)
    _context.assign_identity(span, {SPAN_KEY: Span(TRACE, ROOT)})
    assert identity_of(span).local_root_id == CHILD


@pytest.mark.usefixtures("publishing")
@pytest.mark.parametrize(
    "broken",
    [(TRACE,), (TRACE, CHILD, 0, 1), ("1", CHILD, False, 1), (-1, CHILD, False, 1), (1, 2**64, False, 1), None],
)
def test_a_span_of_a_foreign_kind_is_left_for_when_it_becomes_current(broken: Any) -> None:
    span = Span(TRACE, CHILD)
    span._context = cast(Any, broken)
    _context.assign_identity(span)
    assert not hasattr(span, ATTRIBUTE)


@pytest.mark.usefixtures("publishing")
def test_a_span_that_takes_no_attributes_starts_all_the_same() -> None:
    class Closed(Span):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == ATTRIBUTE:
                raise RuntimeError(name)
            super().__setattr__(name, value)

    failed = _context.counters()["failed"]
    _context.assign_identity(Closed(TRACE, ROOT))
    assert _context.counters()["failed"] == failed + 1


def test_nothing_is_given_while_nothing_is_published() -> None:
    span = Span(TRACE, ROOT)
    _context.assign_identity(span)
    assert not hasattr(span, ATTRIBUTE)


@pytest.mark.usefixtures("publishing")
def test_only_wrong_arguments_are_an_error() -> None:
    wrong: Any = _context.assign_identity
    for arguments, names in (((), {}), ((1, 2, 3), {}), ((1,), {"other": 2}), ((1, 2), {"parent_context": 3})):
        with pytest.raises(TypeError):
            wrong(*arguments, **names)
    wrong(1)
    wrong(None, {SPAN_KEY: 1})


class Inheriting(SpanProcessor):
    """The profiler's span processor."""

    on_start = staticmethod(_context.assign_identity)


@pytest.fixture
def sdk() -> Iterator[InstalledPublisher]:
    """Install the publisher on OpenTelemetry's own variable, with its attach and detach."""
    runtime: Any = otel_context._RUNTIME_CONTEXT
    publishing = InstalledPublisher(variable=vars(runtime)["_current_context"], span_key=_SPAN_KEY)
    publishing.install()
    runtime.attach, runtime.detach = _context.attach, _context.detach
    yield publishing
    del runtime.attach, runtime.detach
    publishing.uninstall()


def test_spans_of_the_sdk_are_published_with_their_local_root(sdk: InstalledPublisher) -> None:
    memory, provider = OwnMemory(), TracerProvider()
    provider.add_span_processor(Inheriting())
    tracer = provider.get_tracer("test")
    remote = trace.SpanContext(TRACE, CHILD, is_remote=True, trace_flags=trace.TraceFlags(1))
    incoming = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    outer = tracer.start_as_current_span("local root", context=incoming)
    with outer as root, tracer.start_as_current_span("inner") as inner:
        shown = memory.elastic()
    flags = int(inner.get_span_context().trace_flags)
    own, roots = inner.get_span_context().span_id, root.get_span_context().span_id
    assert shown == Elastic(1, 1, 1, flags, TRACE, own, roots)
    assert memory.elastic() == Elastic(1, 1, 0, 0, 0, 0, 0)
    assert not sdk.asked
    provider.shutdown()


def test_a_span_that_is_not_recorded_is_asked_about(sdk: InstalledPublisher) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    memory = OwnMemory()
    with provider.get_tracer("test").start_as_current_span("dropped") as span:
        context = span.get_span_context()
        assert memory.elastic() == Elastic(
            1, 1, 1, int(context.trace_flags), context.trace_id, context.span_id, context.span_id
        )
    assert sdk.asked == [span]
    provider.shutdown()
