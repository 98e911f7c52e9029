"""A provider with deferred exporters; shared by tests."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from splunk_profiler.host_profilers.annotation import STACK_TRACE_IDS, HostId, transaction_key
from splunk_profiler.host_profilers.pending_spans import PendingSpans
from splunk_profiler.host_profilers.span_deferral import SpanDeferral
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder

STACK = b"s" * 16
ID = "c3Nzc3Nzc3Nzc3Nzc3Nzcw"


class DeferralBench:
    """A provider with deferred exporters, on a fake clock."""

    def __init__(self, size: int = 100, **provider: Any) -> None:
        self.now_ns = 1_000
        self.notices = 0
        self.host_id = HostId(lambda *_: None)
        pending = PendingSpans(size, self.host_id)
        self.transactions = pending.transactions
        self.forwarder = SpanForwarder(pending, lambda _: False, lambda: self.now_ns)
        self.deferral = SpanDeferral(pending, self.forwarder, self._notice, lambda: self.now_ns)
        self.provider = TracerProvider(shutdown_on_exit=False, **provider)
        self.tracer = self.provider.get_tracer("t")
        self.exporter = InMemorySpanExporter()
        self.first: SpanProcessor | None = None

    def _notice(self) -> None:
        self.notices += 1

    def add(self, processor: SpanProcessor) -> SpanProcessor:
        self.provider.add_span_processor(processor)
        self.first = self.first or processor
        return processor

    def activate(self) -> None:
        self.deferral.is_active = True
        self.deferral.attach(self.provider._active_span_processor)

    def count_stack(self, span: Any, times: int = 1) -> None:
        self.transactions.count(transaction_key(span.get_span_context()), STACK, times)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def ids(self, name: str) -> object:
        (span,) = (one for one in self.exporter.get_finished_spans() if one.name == name)
        return (span.attributes or {}).get(STACK_TRACE_IDS)
