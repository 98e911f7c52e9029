"""Snapshot profiling, composed: which traces, what is sampled of them, when it goes.

Built by `sampling`, whose ticker, worker and record pipeline it uses; has no thread of its own. In a forked child the
selection of its parent goes on, which is among the span processors already. Must not import export or formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splunk_profiler.capture.schedule import TraceFilter
from splunk_profiler.otel import spans
from splunk_profiler.otel.trace_selector import TraceSelector
from splunk_profiler.pipeline.record_pipeline import RecordPipeline
from splunk_profiler.pipeline.trace_snapshot_builder import TraceSnapshotBuilder
from splunk_profiler.raw import RawSnapshot


class TraceProfiler:
    """The close profiles of selected traces.

    Args:
        trace_selector: which traces.
        capture: makes samples of what the ticker saw.
        record_pipeline: takes them.
    """

    def __init__(
        self, trace_selector: TraceSelector, capture: TraceSnapshotBuilder, record_pipeline: RecordPipeline
    ) -> None:
        self.trace_selector = trace_selector
        self._snapshot_builder = capture
        self._record_pipeline = record_pipeline

    def start(self, notify: Callable[[], None]) -> None:
        """Select traces from now on; `notify` is the ticker's `notify_trace_added`."""
        self.trace_selector.begin(notify)
        self.trace_selector.attach(spans.tracer_provider())

    def stop(self) -> None:
        """Select no more."""
        self.trace_selector.end()
        self.trace_selector.detach()

    def take(self, raw: RawSnapshot) -> None:
        """Whatever the ticker saw, of all threads or of some; on the worker's thread."""
        if self.trace_selector.has_selected(raw.time_ns):
            snapshot = self._snapshot_builder.snapshot(raw)
            if snapshot.samples:
                self._record_pipeline.take(snapshot)

    def flush_if_due(self) -> None:
        """Once a second at least, on the worker's thread."""
        self.trace_selector.attach(spans.tracer_provider())
        self.trace_selector.expire_entries()
        self._record_pipeline.flush_if_due()


def make_trace_filter(trace_selector: TraceSelector) -> TraceFilter:
    """What a ticker has to know of `trace_selector`."""
    traces: dict[int, Any] = trace_selector.traces
    return TraceFilter(traces, spans.span_key(), spans.trace_id)
