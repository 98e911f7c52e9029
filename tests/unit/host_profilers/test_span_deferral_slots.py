"""Tests of sets of processors with slots: they take no methods, and perhaps no weak references."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from correlator_bench import CorrelatorBench
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from splunk_profiler.host_profilers.annotation import STACK_TRACE_IDS
from splunk_profiler.otel.span_processors import WeakIdentitySet


class Slotted:
    """A set of processors with slots."""

    __slots__ = ("_span_processors",)

    def __init__(self) -> None:
        self._span_processors: tuple[SpanProcessor, ...] = ()

    def add_span_processor(self, processor: SpanProcessor) -> None:
        self._span_processors += (processor,)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        for one in self._span_processors:
            one.on_start(span, parent_context)

    def on_end(self, span: Any) -> None:
        for one in self._span_processors:
            one.on_end(span)

    def _on_ending(self, span: Any) -> None:
        pass

    def shutdown(self) -> None:
        for one in self._span_processors:
            one.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return all(one.force_flush(timeout_millis) for one in self._span_processors)


class Referable(Slotted):
    """The same with weak references."""

    __slots__ = ("__weakref__",)


class Unequal(Referable):
    """The same without equality and hash."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Slotted, Referable, Unequal])
@pytest.mark.parametrize("at_once", [True, False])
def test_transactions_of_a_provider_with_a_custom_processor_are_deferred(
    tmp_path: Any, kind: type[Slotted], *, at_once: bool
) -> None:
    bench = CorrelatorBench(tmp_path, at_once=at_once, resource={})
    provider: Any = TracerProvider(shutdown_on_exit=False, active_span_processor=kind())  # type: ignore[arg-type]
    processor = SimpleSpanProcessor(bench.exporter)
    provider.add_span_processor(processor)
    try:
        bench.correlator.attach(provider._active_span_processor)
        bench.register()
        while "on_end" not in vars(processor):
            pass
        span = provider.get_tracer("t").start_span("root")
        bench.report_stack(span)
        span.end()
        assert STACK_TRACE_IDS in (bench.exporter.next().attributes or {})
    finally:
        bench.end()


@pytest.mark.parametrize("kind", [Slotted, Referable, Unequal])
def test_what_was_met_is_known_by_identity(kind: type[Slotted]) -> None:
    met, one, other = WeakIdentitySet(), kind(), kind()
    assert [met.add(one), met.add(one), met.add(other), met.add(one)] == [True, False, True, False]
    assert [id(known) for known in met] == [id(one), id(other)]


def test_what_was_met_is_not_kept_where_it_allows_that() -> None:
    met, one = WeakIdentitySet(), Referable()
    met.add(one)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert list(met) == []
    assert met.add(Referable())
