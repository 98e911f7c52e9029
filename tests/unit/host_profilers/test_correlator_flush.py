"""Tests of flushes, which end in time even if an exporter hangs."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from correlator_bench import WAIT_S, CorrelatorBench
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from splunk_profiler.system.threads import WakeEvent

BRIEFLY_MS = 300


class Held(InMemorySpanExporter):
    """An exporter that hangs until `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def export(self, spans: Any) -> Any:
        self.entered.release()
        assert self.open.wait(WAIT_S)
        return super().export(spans)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.get_finished_spans()]


@pytest.fixture
def held(tmp_path: Path) -> Any:
    bench = CorrelatorBench(tmp_path, at_once=True, resource={})
    exporter = Held()
    processor = SimpleSpanProcessor(exporter)
    bench.provider.add_span_processor(processor)
    bench.register(delay_ms=600_000)
    yield bench, exporter, processor
    exporter.open.set()
    bench.end()


def flushed_in_vain(bench: CorrelatorBench, processor: SpanProcessor, *names: str) -> None:
    """End these transactions, and flush without success."""
    for name in names:
        bench.tracer.start_span(name).end()
    assert not processor.force_flush(BRIEFLY_MS)


def test_flush_with_a_hanging_exporter_fails_in_time_and_loses_nothing(
    held: tuple[CorrelatorBench, Held, SimpleSpanProcessor],
) -> None:
    bench, exporter, processor = held
    flushed_in_vain(bench, processor, "one", "two", "three")
    assert exporter.entered.acquire(timeout=WAIT_S)
    assert not processor.force_flush(BRIEFLY_MS), "a second one neither"
    exporter.open.set()
    assert processor.force_flush(WAIT_S * 1000)
    assert exporter.names == ["one", "two", "three"]


def test_spans_a_flush_left_behind_go_out_once_the_exporter_returns(
    held: tuple[CorrelatorBench, Held, SimpleSpanProcessor],
) -> None:
    bench, exporter, processor = held
    flushed_in_vain(bench, processor, "one", "two")
    exporter.open.set()
    for _ in range(2):
        assert exporter.entered.acquire(timeout=WAIT_S), "though nobody flushes again"


def test_flushes_in_vain_leave_nothing_behind_however_many(
    held: tuple[CorrelatorBench, Held, SimpleSpanProcessor],
) -> None:
    bench, _exporter, processor = held
    flushed_in_vain(bench, processor, "one", "two")
    before = _signals()
    for _ in range(100):
        assert not processor.force_flush(1)
    assert _signals() <= before + 2, "those that our own thread is still to be asked for"


def _signals() -> int:
    return sum(isinstance(found, WakeEvent) for found in gc.get_objects())


def test_hanging_exporter_does_not_keep_a_flush_from_other_processors(
    held: tuple[CorrelatorBench, Held, SimpleSpanProcessor],
) -> None:
    bench, _exporter, processor = held
    other = InMemorySpanExporter()
    batch = BatchSpanProcessor(other, schedule_delay_millis=3_600_000)
    bench.provider.add_span_processor(batch)
    flushed_in_vain(bench, processor, "one", "two")
    flushed_in_vain(bench, batch, "three")
    assert [span.name for span in other.get_finished_spans()] == ["one", "two", "three"]


def test_a_shutdown_after_a_flush_in_vain_hands_over_what_that_had_left(
    held: tuple[CorrelatorBench, Held, SimpleSpanProcessor],
) -> None:
    bench, exporter, processor = held
    flushed_in_vain(bench, processor, "one", "two", "three")
    exporter.open.set()
    bench.provider.shutdown()
    assert exporter.names == ["one", "two", "three"]


class FlushingUnderItsLock(SpanProcessor):
    """A processor that exports and flushes the provider at each end of a span, under its own lock."""

    def __init__(self, bench: CorrelatorBench) -> None:
        self.span_exporter = InMemorySpanExporter()
        self._bench = bench
        self._lock = threading.RLock()

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self.span_exporter.export([span])
            assert self._bench.provider.force_flush()


def test_flush_under_a_processors_own_lock_does_not_deadlock(
    tmp_path: Path,
) -> None:
    bench = CorrelatorBench(tmp_path, at_once=True, resource={})
    processor = FlushingUnderItsLock(bench)
    bench.provider.add_span_processor(processor)
    bench.register(delay_ms=600_000)
    try:
        with bench.tracer.start_as_current_span("one"):
            pass
        with bench.tracer.start_as_current_span("two"):
            bench.tracer.start_span("child").end()
        names = [span.name for span in processor.span_exporter.get_finished_spans()]
        assert names == ["child", "one"], "the child's end flushes, and two has not ended then"
        bench.provider.force_flush()
        assert processor.span_exporter.get_finished_spans()[-1].name == "two"
    finally:
        bench.end()
