"""The step from raw snapshots to samples of the selected traces.

`TraceSnapshotBuilder` runs on the sampling worker's thread, beside `SnapshotBuilder`. Both share the
infos of threads, but no times, so that it does not change the samples of all threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from splunk_profiler.model import InstrumentationSource, Sample, Snapshot, SpanRef
from splunk_profiler.pipeline.idle_threads import read_nice_value
from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder, make_thread_sample, to_boottime_ns
from splunk_profiler.pipeline.thread_registry import ThreadInfo
from splunk_profiler.pipeline.thread_times import ThreadTimeDelta
from splunk_profiler.raw import Periods, RawSnapshot, RawThread


class SelectedTraces(Protocol):
    """The selected traces, as `otel.trace_selector` has them."""

    def is_selected(self, trace_id: int, time_ns: int) -> bool:
        """Return True if the trace was selected at that time."""

    def entry_span(self, trace_id: int) -> Any | None:
        """Return the `EntrySpan` with which the trace came into this process, or None."""


class _PreviousSample(NamedTuple):
    """The last sample of a thread; `time_ns` is its deadline."""

    trace_id: int
    time_ns: int
    cpu_ns: int


class TraceSnapshotBuilder:
    """Samples of selected traces.

    A sample stands for the time since the thread's previous sample in the same trace, or since the
    trace came in on this thread. Both are limited to the time since the previous tick, with a
    proportional part of the CPU time: work of an event loop for others in between belongs to other
    traces. If a thread came to a trace in another way, its first sample stands for one period.
    """

    def __init__(self, snapshot_builder: SnapshotBuilder, selected_traces: SelectedTraces, periods: Periods) -> None:
        self._snapshot_builder = snapshot_builder
        self._selected_traces = selected_traces
        self._periods = periods
        self._previous_samples: dict[int, _PreviousSample] = {}
        self._last_focused_ns = periods.focused_ns  # period of the last focused raw snapshot

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """Return the samples of `raw` that belong to selected traces."""
        builder = self._snapshot_builder
        period_ns, deadline_ns = self._period_ns(raw), raw.time_ns - raw.latency_ns
        previous_samples = {}
        samples = []
        for raw_thread in raw.threads:
            span = self._span_of(raw_thread, raw.time_ns)
            if span is None:
                continue
            info = builder.thread_info(raw_thread, raw.time_ns)
            if not builder.is_excluded(raw_thread.stack, info.thread.name):
                samples.append(self._sample(raw, raw_thread, span, info, period_ns))
                previous_samples[raw_thread.key] = _PreviousSample(span.trace_id, deadline_ns, raw_thread.cpu_ns)
        self._previous_samples = previous_samples
        return Snapshot(raw.time_ns, period_ns, tuple(samples), source=InstrumentationSource.SNAPSHOT)

    def _period_ns(self, raw: RawSnapshot) -> int:
        """Return the distance of the ticks that sample selected traces."""
        if not raw.period_ns:
            return self._periods.min_focused_ns
        if raw.is_focused:
            self._last_focused_ns = raw.period_ns
            return raw.period_ns
        if self._periods.is_all_threads_base:
            return self._periods.stretched(raw.period_ns).min_focused_ns
        return min(raw.period_ns, self._last_focused_ns)

    def _span_of(self, raw_thread: RawThread, time_ns: int) -> SpanRef | None:
        span = self._snapshot_builder.span_of(raw_thread) if raw_thread.stack.frames else None
        return span if span is not None and self._selected_traces.is_selected(span.trace_id, time_ns) else None

    def _sample(
        self, raw: RawSnapshot, raw_thread: RawThread, span: SpanRef, info: ThreadInfo, period_ns: int
    ) -> Sample:
        thread = make_thread_sample(
            raw_thread,
            info,
            self._time_delta(raw, raw_thread, span, period_ns),
            cpu_ns=raw_thread.cpu_ns,
            captured_boottime_ns=to_boottime_ns(raw.time_ns),
            nice=read_nice_value(info.thread.native_id),
        )
        labels = self._snapshot_builder.labels_of(raw_thread)
        return Sample(raw.time_ns, period_ns, thread, span, labels, source=InstrumentationSource.SNAPSHOT)

    def _time_delta(self, raw: RawSnapshot, raw_thread: RawThread, span: SpanRef, period_ns: int) -> ThreadTimeDelta:
        """Return the wall and CPU time that a sample stands for."""
        now_ns, cpu_ns = raw.time_ns - raw.latency_ns, raw_thread.cpu_ns
        previous, entry = self._previous_samples.get(raw_thread.key), self._selected_traces.entry_span(span.trace_id)
        if previous is not None and entry is not None and entry.time_ns > previous.time_ns:
            previous = None  # from an earlier visit; its end was not seen, as there are no ticks without a trace
        if previous is not None and previous.trace_id == span.trace_id:
            wall_ns, used_ns = now_ns - previous.time_ns, cpu_ns - previous.cpu_ns
        elif entry is not None and entry.ident == raw_thread.ident:
            wall_ns, used_ns = now_ns - entry.time_ns, cpu_ns - entry.cpu_ns
        else:
            wall_ns, used_ns = period_ns, 0
        part_ns = min(max(wall_ns, 0), max(raw.since_previous_ns, period_ns))
        if not cpu_ns or wall_ns <= 0:
            return ThreadTimeDelta(part_ns, 0)
        return ThreadTimeDelta(part_ns, min(max(used_ns, 0) * part_ns // wall_ns, part_ns))
