"""Deferred spans and the processors that receive them.

In any combination, an application gets the same spans in the same order, with the attribute added.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from application_processors import Filtering, OwnKind, Watching
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, use_span

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from correlated_process import batch_processor, correlated, simple_processor
from host_profiler import ENCODED_STACKS, OTHER_STACK, STACK, STACK_IDS_ATTRIBUTE, RecordingExporter, ids_on
from published_process import published_ids

_EXPECTED = {ENCODED_STACKS[STACK]: 2}


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory of its own whose path is short enough for a socket's."""
    with TemporaryDirectory(prefix="s") as path:
        yield Path(path)


def named() -> Resource:
    return Resource({"service.name": "shop", "team": ["a", "b"]})


def test_the_exported_bytes_differ_in_the_attribute_and_in_nothing_else(directory: Path) -> None:
    limits = SpanLimits(max_span_attributes=2, max_events=1, max_links=1, max_attribute_length=5)
    provider = TracerProvider(resource=named(), span_limits=limits)
    watching = Watching()
    provider.add_span_processor(watching)
    with correlated(directory, provider=provider) as here:
        linked = [Link(SpanContext(number, number, is_remote=False), {"number": number}) for number in (1, 2, 3)]
        tracer = provider.get_tracer("scope", "1.2", "https://a.schema/1", {"of": "scope"})
        root = tracer.start_span("root", kind=SpanKind.SERVER, links=linked, attributes={"dropped": 1})
        for key in ("first", "second"):
            root.set_attribute(key, "longer than five")
            root.add_event(key, {"event": key})
        root.set_status(Status(StatusCode.ERROR, "why"))
        here.host.report(root, count=2)
        root.end()
        here.flush()
        (original,) = (span for span in watching.ended if span.name == "root")
        exported = here.exported.one("root")
    assert (original.dropped_attributes, original.dropped_events, original.dropped_links) == (1, 1, 2)
    assert STACK_IDS_ATTRIBUTE not in (original.attributes or {})
    expected = encode_spans([original])
    (wanted,) = expected.resource_spans[0].scope_spans[0].spans
    made = encode_spans([exported])
    (span,) = made.resource_spans[0].scope_spans[0].spans
    assert [item.key for item in span.attributes] == [item.key for item in wanted.attributes] + [STACK_IDS_ATTRIBUTE]
    assert [item.string_value for item in span.attributes[-1].value.array_value.values] == [ENCODED_STACKS[STACK]] * 2
    del span.attributes[-1]
    assert made == expected


def test_transaction_without_stack_traces_is_exported_as_the_same_object(directory: Path) -> None:
    watching = Watching()
    provider = TracerProvider(resource=named())
    provider.add_span_processor(watching)
    with correlated(directory, provider=provider) as here:
        here.span("root").end()
        here.flush()
        assert here.exported.one("root") is watching.ended[-1]


def test_the_span_that_the_application_holds_is_not_touched(directory: Path) -> None:
    with correlated(directory) as here:
        root = here.span("root", attributes={"mine": 1})
        assert isinstance(root, ReadableSpan)
        here.host.register(host_id="a-host")
        here.host.report(root, count=2)
        root.end()
        before = (dict(root.attributes or {}), root.resource, root.end_time, root.is_recording())
        here.flush()
        assert here.exported.ids("root") == _EXPECTED
        assert here.exported.one("root").resource.attributes["host.id"] == "a-host"
        assert (dict(root.attributes or {}), root.resource, root.end_time, root.is_recording()) == before
        assert before[0] == {"mine": 1}
        assert before[1] is here.provider.resource


def test_samples_of_a_thread_that_has_only_ids_are_on_their_transaction(directory: Path) -> None:
    def work(context: SpanContext) -> None:
        with use_span(NonRecordingSpan(context)):
            seen = published_ids()
        assert seen is not None
        here.host.report_ids(seen.trace_id, seen.local_root_id, count=2)

    with correlated(directory) as here:
        with here.tracer.start_as_current_span("root"), here.tracer.start_as_current_span("query") as query:
            thread = threading.Thread(target=work, args=(query.get_span_context(),))
            thread.start()
            thread.join()
        here.flush()
        assert here.exported.ids("root") == _EXPECTED


def test_transactions_are_exported_in_the_order_in_which_they_ended(directory: Path) -> None:
    with correlated(directory, processor=batch_processor) as here:
        spans = [here.span(f"{number}") for number in range(300)]
        for span in reversed(spans):
            span.end()
        here.flush()
        assert here.exported.names == [f"{number}" for number in reversed(range(300))]


@pytest.mark.parametrize("how", ["provider", "processor", "shutdown", "shutdown of the processor"])
@pytest.mark.parametrize("processor", [simple_processor, batch_processor])
def test_a_flush_or_shutdown_exports_the_spans_that_wait(directory: Path, processor: Any, how: str) -> None:
    with correlated(directory, processor=processor) as here:
        root = here.span("root")
        here.host.report(root, count=2)
        root.end()
        assert here.exported.names == []
        if how == "provider":
            assert here.provider.force_flush(1000)
        elif how == "processor":
            assert here.processor.force_flush()
        elif how == "shutdown":
            here.provider.shutdown()
        else:
            here.processor.shutdown()
        assert here.exported.ids("root") == _EXPECTED
        assert here.exported.is_shut_down == how.startswith("shutdown")


def test_flush_passes_its_timeout_on_and_returns_the_processors_result(directory: Path) -> None:
    with correlated(directory, processor=OwnKind, hold=False) as here:
        assert isinstance(here.processor, OwnKind)
        assert here.processor.force_flush(7) is False
        assert here.processor.force_flush(timeout_millis=8) is False
        assert here.processor.asked == [7, 8]
        here.processor.force_flush()
        assert here.exported.names == ["met"]


def test_what_ends_after_a_shutdown_does_not_wait(directory: Path) -> None:
    with correlated(directory, processor=OwnKind, hold=False) as here:
        here.host.register()
        here.log.wait_for("has registered")
        here.provider.shutdown()
        here.span("late").end()
        assert here.exported.names[-1] == "late"


def test_a_processor_within_a_filtering_one_is_made_to_wait(directory: Path) -> None:
    with correlated(directory, processor=lambda exported: Filtering(batch_processor(exported))) as here:
        for name in ("noise", "root"):
            span = here.span(name)
            here.host.report(span, count=2)
            span.end()
        here.flush()
        assert here.exported.names == ["root"]
        assert here.exported.ids("root") == _EXPECTED


def test_processors_within_a_set_of_processors_are_made_to_wait(directory: Path) -> None:
    inner = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]

    def several(exported: RecordingExporter) -> SpanProcessor:
        inner.add_span_processor(simple_processor(exported))
        return inner

    with correlated(directory, processor=several) as here:
        added = RecordingExporter()
        inner.add_span_processor(simple_processor(added))
        root = here.span("root")
        here.host.report(root, count=2)
        root.end()
        assert here.exported.names == []
        here.flush()
        assert here.exported.ids("root") == _EXPECTED
        assert added.ids("root") == _EXPECTED


@pytest.mark.parametrize("mode", ["true", "auto"])
def test_processors_that_are_added_later_are_made_to_wait(directory: Path, mode: str) -> None:
    with correlated(directory, mode) as here:
        later = RecordingExporter()
        here.provider.add_span_processor(simple_processor(later))
        filtered = RecordingExporter()
        here.provider.add_span_processor(Filtering(simple_processor(filtered)))
        root = here.span("root")
        here.host.report(root, count=2)
        root.end()
        assert here.exported.names == later.names == filtered.names == []
        here.flush()
        assert [exported.ids("root") for exported in (here.exported, later, filtered)] == [_EXPECTED] * 3


def test_a_second_provider_is_correlated_from_its_first_span_on(directory: Path) -> None:
    with correlated(directory) as here:
        exported = RecordingExporter()
        second = TracerProvider(resource=Resource({"service.name": "a library's own"}))
        second.add_span_processor(simple_processor(exported))
        with second.get_tracer("t").start_as_current_span("first") as root:
            here.host.report(root, count=2)
        assert second.force_flush()
        assert exported.ids("first") == _EXPECTED
        second.shutdown()


def test_two_exporters_get_each_transaction_once_and_whole(directory: Path) -> None:
    second = RecordingExporter()
    provider = TracerProvider(resource=named())
    provider.add_span_processor(batch_processor(second))
    with correlated(directory, provider=provider) as here:
        second.clear()
        for number in range(50):
            root = here.span(f"{number}")
            here.host.report(root, count=2)
            root.end()
        here.flush()
        names = [f"{number}" for number in range(50)]
        assert here.exported.names == names
        assert [name for name in second.names if name != "met"] == names
        assert all(ids_on(span) == _EXPECTED for exported in (here.exported, second) for span in exported.spans[-50:])
        assert here.exported.spans[-1] is second.spans[-1], "the copy is made once"


def test_processors_called_on_other_threads_get_each_transaction_once(directory: Path) -> None:
    concurrent = ConcurrentMultiSpanProcessor(2)
    second = RecordingExporter()
    concurrent.add_span_processor(simple_processor(second))
    provider = TracerProvider(resource=named(), active_span_processor=concurrent)
    with correlated(directory, provider=provider) as here:
        second.clear()
        for number in range(20):
            root = here.span(f"{number}")
            here.host.report(root, count=2)
            root.end()
        here.flush()
        for exported in (here.exported, second):
            assert sorted(exported.names, key=int) == [f"{number}" for number in range(20)]
            assert all(ids_on(span) == _EXPECTED for span in exported.spans)


class Slotted:
    """A processor that has no room for anything of ours."""

    __slots__ = ("exporter",)

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing."""

    def _on_ending(self, span: Span) -> None:
        """Nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Export it."""
        self.exporter.export([span])

    def shutdown(self) -> None:
        """Nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Nothing waits."""
        return True


def test_a_processor_that_cannot_be_decorated_exports_as_it_always_does(directory: Path) -> None:
    slotted = RecordingExporter()
    provider = TracerProvider(resource=named())
    provider.add_span_processor(Slotted(slotted))  # type: ignore[arg-type]
    with correlated(directory, provider=provider) as here:
        here.span("root").end()
        assert slotted.names[-1] == "root"
        assert here.exported.names == []
        here.flush()
        assert here.exported.names == ["root"]


def test_an_exporter_that_fails_costs_its_own_spans_only(directory: Path) -> None:
    failing = OwnKind(RecordingExporter(fail))
    provider = TracerProvider(resource=named())
    provider.add_span_processor(failing)
    with correlated(directory, provider=provider, hold=False) as here:
        here.host.register()
        here.log.wait_for("has registered")
        here.span("root").end()
        assert here.provider.force_flush() is False  # the answer of the one that fails
        assert here.exported.names[-1] == "root"
        assert here.log.count("WARNING an error in forwarding spans to the application's exporters") == 1


def fail(_: ReadableSpan) -> None:
    raise RuntimeError("the exporter's own")


def test_transactions_of_many_threads_are_exported_once_during_flushes(directory: Path) -> None:
    with correlated(directory, processor=batch_processor, correlation_buffer_size=50) as here:
        stop = threading.Event()

        def flush() -> None:
            while not stop.is_set():
                here.provider.force_flush()

        def work(worker: int) -> None:
            for number in range(500):
                with here.tracer.start_as_current_span(f"{worker}.{number}", Context()):
                    here.span("child").end()

        flushing = [threading.Thread(target=flush) for _ in range(2)]
        working = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in (*flushing, *working):
            thread.start()
        for thread in working:
            thread.join()
        stop.set()
        for thread in flushing:
            thread.join()
        here.flush()
        names = sorted(name for name in here.exported.names if name != "child")
        assert names == sorted(f"{worker}.{number}" for worker in range(4) for number in range(500))


def test_a_span_may_end_in_a_finaliser_while_another_is_forwarded(directory: Path) -> None:
    """Collected generators end spans like this: on any thread, between any two steps, also within our own."""
    with correlated(directory, processor=batch_processor) as here:

        class Ending:
            """A span that ends when the cyclic collector finds it."""

            def __init__(self, name: str) -> None:
                self.itself = self
                self.span = here.span(name)

            def __del__(self) -> None:
                self.span.end()

        for number in range(2000):
            Ending(f"collected {number}")
            root = here.span(f"{number}")
            if number % 10 == 0:
                here.host.report(root, OTHER_STACK)
            root.end()
            if number % 50 == 0:
                here.flush()
        gc.collect()
        here.flush()
        assert sorted(here.exported.names) == sorted(
            f"{kind}{number}" for kind in ("", "collected ") for number in range(2000)
        )
