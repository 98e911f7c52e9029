"""Tests of deferral with the SDK's own processors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from deferral_bench import ID, DeferralBench
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, ReadableSpan, SpanProcessor, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from splunk_profiler.host_profilers.annotation import STACK_TRACE_IDS
from splunk_profiler.host_profilers.wrapped_exporters import iter_processors

LATER = 1 << 62
REMOTE = set_span_in_context(NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))))


@pytest.fixture
def bench() -> Iterator[DeferralBench]:
    made = DeferralBench()
    made.add(SimpleSpanProcessor(made.exporter))
    yield made
    made.deferral.detach(made.now_ns)
    made.provider.shutdown()


def test_a_transaction_waits_and_carries_what_came_meanwhile(bench: DeferralBench) -> None:
    bench.activate()
    span = bench.tracer.start_span("root")
    bench.count_stack(span, 2)
    span.end()
    assert bench.names == []
    bench.count_stack(span)
    assert bench.forwarder.forward(bench.now_ns - 1)
    assert bench.names == []
    assert bench.forwarder.forward(bench.now_ns)
    assert bench.ids("root") == (ID,) * 3
    assert bench.notices == 1


def test_a_span_with_a_remote_parent_is_a_transaction(bench: DeferralBench) -> None:
    bench.activate()
    bench.tracer.start_span("served", context=REMOTE).end()
    assert bench.names == []
    bench.forwarder.forward(bench.now_ns)
    assert bench.ids("served") is None  # without stacks there is no attribute


def test_nothing_waits_while_it_is_not_active(bench: DeferralBench) -> None:
    bench.tracer.start_span("before").end()
    bench.activate()
    bench.deferral.is_active = False
    bench.tracer.start_span("after").end()
    assert bench.names == ["before", "after"]


def test_children_go_straight_through() -> None:
    bench = DeferralBench()
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    with bench.tracer.start_as_current_span("root"):
        bench.tracer.start_span("child").end()
    assert bench.names == ["child"]
    bench.deferral.detach(LATER)
    assert bench.names == ["child", "root"]


def test_unsampled_transactions_go_straight_through() -> None:
    class RecordOnly(sampling.Sampler):
        def should_sample(self, *_: Any, **__: Any) -> sampling.SamplingResult:
            return sampling.SamplingResult(sampling.Decision.RECORD_ONLY)

        def get_description(self) -> str:
            return "record only"

    class Seeing(SpanProcessor):
        exporter = InMemorySpanExporter()

        def __init__(self) -> None:
            self.ended: list[str] = []

        def on_end(self, span: ReadableSpan) -> None:
            self.ended.append(span.name)

    bench = DeferralBench(sampler=RecordOnly())
    seeing = Seeing()
    bench.add(seeing)
    bench.activate()
    bench.tracer.start_span("unsampled").end()
    assert seeing.ended == ["unsampled"]
    assert len(bench.transactions) == 0
    bench.deferral.detach(LATER)


def test_a_full_buffer_sends_at_once_warns_once_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = DeferralBench(size=2)
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        for number in range(5):
            span = bench.tracer.start_span(str(number))
            bench.count_stack(span)
            span.end()
    assert bench.names == ["2", "3", "4"]
    assert bench.ids("4") == (ID,)
    (record,) = caplog.records
    assert "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE" in record.getMessage()
    bench.deferral.detach(LATER)
    assert sorted(bench.names) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("of", ["provider", "processor"])
def test_a_flush_brings_out_what_waits(bench: DeferralBench, of: str) -> None:
    processor = bench.first
    assert processor is not None
    bench.activate()
    span = bench.tracer.start_span("root")
    bench.count_stack(span)
    span.end()
    assert (bench.provider if of == "provider" else processor).force_flush()
    assert bench.ids("root") == (ID,)


def test_shutdown_exports_what_waits_and_later_spans_are_not_deferred(bench: DeferralBench) -> None:
    bench.activate()
    bench.tracer.start_span("root").end()
    bench.provider.shutdown()
    assert bench.names == ["root"]
    bench.tracer.start_span("too late").end()
    assert len(bench.transactions) == 0


def test_a_flush_does_not_overflow_the_queue_of_a_batch_processor() -> None:
    bench = DeferralBench(size=1000)
    exporter = InMemorySpanExporter()
    batch = BatchSpanProcessor(exporter, max_queue_size=16, max_export_batch_size=16, schedule_delay_millis=60_000)
    bench.add(batch)
    bench.activate()
    for number in range(500):
        bench.tracer.start_span(str(number)).end()
    assert bench.provider.force_flush()
    assert [span.name for span in exporter.get_finished_spans()] == [str(number) for number in range(500)]
    bench.deferral.detach(LATER)
    bench.provider.shutdown()


def test_due_spans_wait_a_little_for_room_in_a_batch_processors_queue() -> None:
    bench = DeferralBench()
    exporter = InMemorySpanExporter()
    batch = BatchSpanProcessor(exporter, max_queue_size=4, max_export_batch_size=4, schedule_delay_millis=60_000)
    bench.add(batch)
    bench.activate()
    with batch._batch_processor._export_lock:  # as while an export is under way
        for number in range(10):
            bench.tracer.start_span(str(number)).end()
        bench.forwarder.forward(bench.now_ns)
        left = len(bench.transactions)
        assert left >= 2
        bench.now_ns += 2_000_000_000
        assert bench.forwarder.forward(bench.now_ns)  # after a second the processor gets them and drops the oldest
        assert len(bench.transactions) == 0
    bench.deferral.detach(LATER)
    bench.provider.shutdown()


def test_two_exporters_get_the_same_span_once_each(bench: DeferralBench) -> None:
    second = InMemorySpanExporter()
    bench.add(BatchSpanProcessor(second))
    bench.activate()
    span = bench.tracer.start_span("root")
    bench.count_stack(span)
    span.end()
    bench.provider.force_flush()
    assert bench.ids("root") == (ID,)
    (other,) = second.get_finished_spans()
    assert other is bench.exporter.get_finished_spans()[0]


def test_exporters_that_are_added_later_are_found(bench: DeferralBench) -> None:
    bench.activate()
    later = InMemorySpanExporter()
    bench.add(SimpleSpanProcessor(later))
    bench.tracer.start_span("root").end()
    assert not later.get_finished_spans()
    bench.forwarder.forward(bench.now_ns)
    assert [span.name for span in later.get_finished_spans()] == ["root"]


def test_an_exporter_behind_a_filter_is_found() -> None:
    class Filter(SpanProcessor):
        def __init__(self, inner: SpanProcessor) -> None:
            self._inner = inner

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            self._inner.on_start(span, parent_context)

        def on_end(self, span: ReadableSpan) -> None:
            if span.name != "health":
                self._inner.on_end(span)

    bench = DeferralBench()
    bench.add(Filter(SimpleSpanProcessor(bench.exporter)))
    bench.activate()
    for name in ("health", "root"):
        bench.tracer.start_span(name).end()
    assert bench.names == []
    bench.forwarder.forward(bench.now_ns)
    assert bench.names == ["root"]
    bench.deferral.detach(LATER)


def test_processors_that_do_not_export_are_left_alone() -> None:
    class Naming(SpanProcessor):
        """A processor that exports nothing."""

    naming, simple = Naming(), SimpleSpanProcessor(InMemorySpanExporter())
    bench = DeferralBench()
    bench.add(naming)
    bench.add(simple)
    processors = bench.provider._active_span_processor
    assert list(iter_processors(processors)) == [processors, simple]
    bench.activate()
    assert vars(naming) == {}
    bench.deferral.detach(LATER)


def test_processors_that_run_on_threads_of_their_own_are_deferred_too() -> None:
    concurrent = ConcurrentMultiSpanProcessor()
    bench = DeferralBench(active_span_processor=concurrent)
    exporters = [InMemorySpanExporter() for _ in range(3)]
    for exporter in exporters:
        bench.add(SimpleSpanProcessor(exporter))
    bench.activate()
    span = bench.tracer.start_span("root")
    bench.count_stack(span)
    span.end()
    bench.forwarder.forward(bench.now_ns)
    for exporter in exporters:
        (one,) = exporter.get_finished_spans()
        assert (one.attributes or {})[STACK_TRACE_IDS] == (ID,)
    bench.deferral.detach(LATER)
    bench.provider.shutdown()


def test_after_it_has_left_the_processors_are_as_they_were(bench: DeferralBench) -> None:
    processors, processor = bench.provider._active_span_processor, bench.first
    assert processor is not None
    before = dict(vars(processor)), dict(vars(processors))
    bench.activate()
    assert (dict(vars(processor)), dict(vars(processors))) != before
    bench.tracer.start_span("waits").end()
    bench.deferral.detach(LATER)
    assert (dict(vars(processor)), dict(vars(processors))) == before
    assert bench.names == ["waits"]
    bench.tracer.start_span("after").end()
    assert bench.names == ["waits", "after"]


def test_a_span_that_cannot_be_understood_is_exported_as_it_is(
    bench: DeferralBench, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(ReadableSpan):
        @property
        def parent(self) -> Any:
            raise RuntimeError("no")

    bench.activate()
    odd = Odd("odd", context=SpanContext(1, 2, False, TraceFlags(1)))
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        bench.provider._active_span_processor.on_end(odd)
    assert bench.names == ["odd"]
    assert "an error in deferring spans for host profilers" in caplog.text


def test_an_exporter_that_fails_costs_its_own_span_only() -> None:
    class Failing(SpanExporter):
        def __init__(self) -> None:
            self.got: list[str] = []

        def export(self, spans: Any) -> SpanExportResult:
            self.got += [span.name for span in spans]
            raise OSError("the disk is full")

    class Raising(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            self.span_exporter.export((span,))

    bench = DeferralBench()
    failing = Failing()
    bench.add(Raising(failing))
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    for name in ("one", "two"):
        bench.tracer.start_span(name).end()
    bench.forwarder.forward(bench.now_ns)
    assert failing.got == bench.names == ["one", "two"]
    bench.deferral.detach(LATER)


def test_endless_exporter_at_shutdown_loses_the_rest_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = DeferralBench()

    class Slow(SpanExporter):
        def __init__(self) -> None:
            self.got: list[str] = []

        def export(self, spans: Any) -> SpanExportResult:
            self.got += [span.name for span in spans]
            bench.now_ns += 10_000_000_000  # as long as a dead collector takes
            return SpanExportResult.FAILURE

    slow = Slow()
    bench.add(SimpleSpanProcessor(slow))
    bench.activate()
    for number in range(10):
        bench.tracer.start_span(str(number)).end()
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        bench.provider.shutdown()
    assert slow.got == ["0"]
    assert [record.getMessage() for record in caplog.records] == [
        "9 spans that waited for the host profiler were not sent: their exporter takes too long"
    ]
    bench.deferral.detach(LATER)


def test_a_flush_that_runs_out_of_time_says_so_and_keeps_the_rest(bench: DeferralBench) -> None:
    class Slow(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            bench.now_ns += 1_000_000_000
            super().on_end(span)

    slow = bench.add(Slow(bench.exporter))
    bench.activate()
    for number in range(10):
        bench.tracer.start_span(str(number)).end()
    assert not slow.force_flush(3_000)
    assert 0 < len(bench.transactions) < 10
    bench.deferral.detach(LATER)
    assert len(set(bench.names)) == 10
