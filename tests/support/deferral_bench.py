"""A provider whose exporters are deferred by hand; shared by tests."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from splunk_profiler.host_profilers.annotation import STACK_TRACE_IDS, HostId, transaction_key
from splunk_profiler.host_profilers.span_deferral import SpanDeferral
from splunk_profiler.host_profilers.span_forwarder import SpanForwarder
from splunk_profiler.host_profilers.transactions import Transactions
from splunk_profiler.system.method_patch import MethodPatch

STACK = b"s" * 16
ID = "c3Nzc3Nzc3Nzc3Nzc3Nzcw"


class DeferralBench:
    """A provider whose exporters are deferred, by a clock that stands still."""

    def __init__(self, size: int = 100, **provider: Any) -> None:
        self.now_ns = 1_000
        self.notices = 0
        self.transactions = Transactions(size)
        self.host_id = HostId(lambda *_: None)
        self.forwarder = SpanForwarder(self.transactions, self.host_id, lambda _: False, lambda: self.now_ns)
        self.deferral = SpanDeferral(
            self.transactions,
            self.forwarder,
            self.host_id,
            MethodPatch,
            self._notice,
            monotonic_ns=lambda: self.now_ns,
        )
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
