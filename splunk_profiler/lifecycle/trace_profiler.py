"""Trace profiling: closer profiles of selected traces, with the ticker, worker and record pipeline of `sampling`.

Has no thread of its own. A forked child continues the trace selector of its parent, which is among the span processors
already. Must not import export or formats.
"""

from __future__ import annotations

from collections.abc import Callable

from splunk_profiler.otel import spans
from splunk_profiler.otel.trace_selector import TraceSelector
from splunk_profiler.pipeline.record_pipeline import RecordPipeline
from splunk_profiler.pipeline.trace_snapshot_builder import TraceSnapshotBuilder
from splunk_profiler.raw import RawSnapshot


class TraceProfiler:
    """Profiler of selected traces."""

    def __init__(
        self, trace_selector: TraceSelector, snapshot_builder: TraceSnapshotBuilder, record_pipeline: RecordPipeline
    ) -> None:
        self._trace_selector = trace_selector
        self._snapshot_builder = snapshot_builder
        self._record_pipeline = record_pipeline

    def start(self, notify: Callable[[], None]) -> None:
        """Select traces from now on; `notify` is the ticker's `notify_trace_added`."""
        self._trace_selector.begin(notify)
        self._trace_selector.attach(spans.tracer_provider())

    def stop(self) -> None:
        """Select no more traces."""
        self._trace_selector.end()
        self._trace_selector.detach()

    def take(self, raw: RawSnapshot) -> None:
        """Sample the selected traces in a raw snapshot of all threads or of some; on the worker's thread."""
        if self._trace_selector.has_selected(raw.time_ns):
            snapshot = self._snapshot_builder.snapshot(raw)
            if snapshot.samples:
                self._record_pipeline.take(snapshot)

    def flush_if_due(self) -> None:
        """Expire old entries and flush due records; called at least once a second, on the worker's thread."""
        self._trace_selector.attach(spans.tracer_provider())
        self._trace_selector.expire_entries()
        self._record_pipeline.flush_if_due()
