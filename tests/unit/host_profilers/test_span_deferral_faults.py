"""Tests of deferral with unusual spans, processors and sets of processors."""

from __future__ import annotations

import gc
import logging
import weakref
from itertools import count
from typing import Any

import pytest
from deferral_bench import ID, DeferralBench
from interrupted_lines import is_interrupted_by_signal
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

from splunk_profiler.host_profilers import span_deferral, wrapped_exporters
from splunk_profiler.host_profilers.annotation import STACK_TRACE_IDS
from splunk_profiler.system.threads import wait_until


class View:
    """A view of a span, as filters make it. A copy of it recurses without end."""

    def __init__(self, span: ReadableSpan) -> None:
        self._span = span

    def __getattr__(self, name: str) -> Any:
        return getattr(self._span, name)


class Viewing(SpanProcessor):
    """A processor that passes on views of spans."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        self._inner.on_end(View(span))  # type: ignore[arg-type]


@pytest.fixture
def viewed() -> DeferralBench:
    bench = DeferralBench()
    bench.add(Viewing(SimpleSpanProcessor(bench.exporter)))
    bench.activate()
    return bench


def test_a_transaction_that_cannot_be_annotated_is_exported_as_it_is(
    viewed: DeferralBench, caplog: pytest.LogCaptureFixture
) -> None:
    span = viewed.tracer.start_span("root")
    viewed.count_stack(span)
    span.end()
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        viewed.forwarder.forward(viewed.now_ns)
    assert viewed.names == ["root"]
    assert caplog.text.count("an error in adding stack-trace ids to spans") == 1


def test_span_that_refuses_its_host_id_is_exported_as_it_is(
    viewed: DeferralBench,
) -> None:
    viewed.host_id.value = "h1"
    with viewed.tracer.start_as_current_span("root"):
        viewed.tracer.start_span("child").end()
    assert viewed.names == ["child"]
    viewed.forwarder.forward(viewed.now_ns)
    assert viewed.names == ["child", "root"]


def test_one_exporter_that_gets_views_takes_nothing_from_another() -> None:
    bench = DeferralBench()
    bench.add(Viewing(SimpleSpanProcessor(bench.exporter)))
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    span = bench.tracer.start_span("root")
    bench.count_stack(span)
    span.end()
    bench.forwarder.forward(bench.now_ns)
    ids = [(one.attributes or {}).get(STACK_TRACE_IDS) for one in bench.exporter.get_finished_spans()]
    assert sorted(ids, key=str) == [(ID,), None]


def test_exception_of_a_signal_handler_reaches_who_ends_a_span() -> None:
    bench = DeferralBench()
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    lines = next(
        line
        for line in count(1)
        if not is_interrupted_by_signal(lambda: bench.tracer.start_span("root").end(), span_deferral, line)
    )
    assert lines > 10


class RequestProxy:
    """A proxy of the request that is being answered, as web frameworks have one."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")


class Tenant(SpanProcessor):
    """A processor that reads the request."""

    def __init__(self) -> None:
        self.request = RequestProxy()


def test_odd_processor_keeps_no_other_from_waiting() -> None:
    bench = DeferralBench()
    bench.add(Tenant())
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    bench.tracer.start_span("root").end()
    assert bench.names == []
    bench.forwarder.forward(bench.now_ns)
    assert bench.names == ["root"]


def test_nothing_is_noted_of_spans_that_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped_exporters, "threads_are_greenlets", lambda: True)
    bench = DeferralBench()
    bench.add(SimpleSpanProcessor(bench.exporter))
    bench.activate()
    span = bench.tracer.start_span("root")
    bench.count_stack(span)
    span.end()
    assert bench.names == ["root"]
    assert bench.transactions.matched == 0


class FlushingAtEachEnd(BatchSpanProcessor):
    """A processor that flushes at each end, as in functions that are frozen between requests."""

    def on_end(self, span: ReadableSpan) -> None:
        super().on_end(span)
        self.force_flush()


@pytest.mark.parametrize("who", ["our own thread", "a flush", "a shutdown"])
def test_processor_that_flushes_at_each_end_gets_all_that_waits(who: str) -> None:
    bench = DeferralBench(size=2_000)
    bench.add(FlushingAtEachEnd(bench.exporter))
    bench.activate()
    names = [f"root {number}" for number in range(2_000)]
    for name in names:
        bench.tracer.start_span(name).end()
    if who == "our own thread":
        bench.forwarder.forward(bench.now_ns)
    elif who == "a flush":
        bench.provider.force_flush()
    bench.provider.shutdown()
    assert sorted(bench.names) == sorted(names)


class Slow(SimpleSpanProcessor):
    """A processor whose exports take 50 ms of the bench's clock."""

    bench: DeferralBench

    def on_end(self, span: ReadableSpan) -> None:
        self.bench.now_ns += 50_000_000
        super().on_end(span)


def slow_bench(kind: type[Slow] = Slow) -> DeferralBench:
    """Return a bench with a slow exporter and twenty transactions that wait."""
    bench = DeferralBench(1_000)
    slow = kind(bench.exporter)
    slow.bench = bench
    bench.add(slow)
    bench.activate()
    for number in range(20):
        bench.tracer.start_span(f"root {number}").end()
    return bench


def test_a_slow_exporter_does_not_keep_our_thread_from_its_messages() -> None:
    bench = slow_bench()
    assert not bench.forwarder.forward(bench.now_ns)
    assert 0 < len(bench.names) < 20
    while not bench.forwarder.forward(bench.now_ns):
        pass
    assert len(bench.names) == 20


def test_overdue_transactions_are_forwarded_by_threads_that_end_others() -> None:
    bench = slow_bench()
    assert bench.names == []
    assert not bench.forwarder.forward(bench.now_ns + 2_000_000_000)
    before = len(bench.names)
    for number in range(5):
        bench.tracer.start_span(f"late {number}").end()
    assert bench.names[before:] == [f"root {before + number}" for number in range(5)]
    while not bench.forwarder.forward(bench.now_ns):
        pass
    bench.tracer.start_span("in time").end()
    assert "in time" not in bench.names
    assert len(bench.names) == 25


def test_threads_that_end_spans_export_what_a_shutdown_could_not() -> None:
    bench = slow_bench()
    for number in range(300):
        bench.tracer.start_span(f"late {number}").end()
    bench.provider.shutdown()
    assert bench.names == [*(f"root {number}" for number in range(20)), *(f"late {number}" for number in range(300))]


class Tracing(Slow):
    """A slow processor that makes a transaction of each export."""

    depth = max_depth = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.depth += 1
        self.max_depth = max(self.depth, self.max_depth)
        if span.name.startswith("root"):
            self.bench.tracer.start_span(f"export of {span.name}").end()
        super().on_end(span)
        self.depth -= 1


def test_exporter_that_ends_transactions_is_not_called_within_its_call() -> None:
    bench = slow_bench(Tracing)
    assert not bench.forwarder.forward(bench.now_ns + 2_000_000_000)
    bench.tracer.start_span("late").end()
    assert isinstance(bench.first, Tracing)
    assert bench.first.max_depth == 1
    bench.provider.shutdown()
    assert len(set(bench.names)) == len(bench.names) == 41


class Lasting(SpanExporter):
    """An exporter that is not shut down with its processor."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._to = exporter

    def export(self, spans: Any) -> SpanExportResult:
        return self._to.export(spans)


class CountedClock(DeferralBench):
    """A bench that counts how often its clock is read."""

    reads = 0
    _ns = 0

    @property
    def now_ns(self) -> int:
        self.reads += 1
        return self._ns

    @now_ns.setter
    def now_ns(self, value: int) -> None:
        self._ns = value


def test_batches_that_take_less_than_a_second_lose_nothing_at_a_shutdown() -> None:
    bench = CountedClock()

    def be_looked_at() -> None:
        enough = bench.reads + 20  # more than it takes to fill the queue
        assert wait_until(lambda: bench.reads > enough or not len(bench.transactions), 30)

    class Answering(Lasting):
        """Takes 0.8 s of the bench's clock for a batch, while the queue is full again."""

        def export(self, spans: Any) -> SpanExportResult:
            be_looked_at()
            bench.now_ns += 800_000_000
            be_looked_at()
            return super().export(spans)

    bench.add(BatchSpanProcessor(Answering(bench.exporter), max_queue_size=4, max_export_batch_size=2))
    bench.activate()
    names = [f"root {number}" for number in range(10)]  # four seconds
    for name in names:
        bench.tracer.start_span(name).end()
    bench.provider.shutdown()
    assert bench.names == names


def test_processors_are_released_after_their_shutdown() -> None:
    bench = DeferralBench()
    bench.activate()
    gone: list[weakref.ref[Any]] = []
    for turn in range(5):
        provider = TracerProvider(shutdown_on_exit=False)
        bench.deferral.attach(provider._active_span_processor)
        processor = SimpleSpanProcessor(Lasting(bench.exporter))
        provider.add_span_processor(processor)
        provider.get_tracer("t").start_span(f"root {turn}").end()
        assert bench.names == [f"root {number}" for number in range(turn)]
        provider.shutdown()
        assert not {"on_end", "shutdown"} & (vars(processor).keys() | vars(provider._active_span_processor).keys())
        gone += [weakref.ref(processor), weakref.ref(provider._active_span_processor)]
        del provider, processor
    gc.collect()
    assert [one() for one in gone] == [None] * 10
    bench.deferral.detach(1)
