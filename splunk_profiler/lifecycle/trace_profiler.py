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
        selection: which traces.
        capture: makes samples of what the ticker saw.
        recording: takes them.
    """

    def __init__(self, selection: TraceSelector, capture: TraceSnapshotBuilder, recording: RecordPipeline) -> None:
        self.selection = selection
        self._capture = capture
        self._recording = recording

    def start(self, notify: Callable[[], None]) -> None:
        """Select traces from now on; `notify` is the ticker's `focus`."""
        self.selection.begin(notify)
        self.selection.meet(spans.tracer_provider())

    def stop(self) -> None:
        """Select no more."""
        self.selection.end()
        self.selection.leave()

    def take(self, raw: RawSnapshot) -> None:
        """Whatever the ticker saw, of all threads or of some; on the worker's thread."""
        if self.selection.wants_any(raw.time_ns):
            snapshot = self._capture.snapshot(raw)
            if snapshot.samples:
                self._recording.take(snapshot)

    def rest(self) -> None:
        """Once a second at least, on the worker's thread."""
        self.selection.meet(spans.tracer_provider())
        self.selection.keep_short()
        self._recording.rest()


def focus_of(selection: TraceSelector) -> TraceFilter:
    """What a ticker has to know of `selection`."""
    traces: dict[int, Any] = selection.traces
    return TraceFilter(traces, spans.span_key(), spans.trace_id)
