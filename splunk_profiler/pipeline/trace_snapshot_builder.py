"""Raw snapshots → samples of the traces that are profiled closely.

`TraceSnapshotBuilder` runs on the sampling worker's thread, beside `SnapshotBuilder`. It shares what is known of
threads with that, but no times: the samples of all threads are as they would be without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from splunk_profiler.model import InstrumentationSource, Sample, Snapshot, SpanRef, ThreadSample
from splunk_profiler.pipeline.idle_threads import read_nice_value
from splunk_profiler.pipeline.snapshot_builder import (
    Labels,
    SnapshotBuilder,
    SpanResolver,
    is_excluded,
    is_running,
    to_boottime_ns,
)
from splunk_profiler.pipeline.stack_filters import waiting_on
from splunk_profiler.pipeline.thread_registry import ThreadInfo
from splunk_profiler.pipeline.thread_times import ThreadTimeDelta
from splunk_profiler.raw import Periods, RawSnapshot, RawThread


class SelectedTraces(Protocol):
    """Says what belongs to the traces that are profiled; see `otel.trace_selector`."""

    def is_selected(self, trace_id: int, time_ns: int) -> bool: ...
    def entry_span(self, trace_id: int) -> Any | None: ...


class _PreviousSample(NamedTuple):
    """A thread at its last sample; `time_ns`: the deadline of that."""

    trace_id: int
    time_ns: int
    cpu_ns: int


class TraceSnapshotBuilder:
    """Samples of selected traces.

    Each stands for the time since the sample before that its thread has in the same trace, or since the trace has
    come in on this thread, but not for more than the time since the tick before, nor for more than that part of the CPU
    time: what an event loop did for others in between is not this trace's. Where a thread has come to a trace in
    another way, its first sample stands for one period.

    Args:
        snapshot_builder: knows the threads.
        resolve_span: OpenTelemetry context → span.
        selected_traces: which traces.
        periods: the distances of ticks, where a raw snapshot does not say others.
        include_internal: also keep the profiler's, the SDK's and gRPC's threads.
        labels_of: see `SnapshotBuilder`.
    """

    def __init__(
        self,
        snapshot_builder: SnapshotBuilder,
        resolve_span: SpanResolver,
        selected_traces: SelectedTraces,
        periods: Periods,
        *,
        include_internal: bool = False,
        labels_of: Callable[[Any], Labels] = lambda _: (),
    ) -> None:
        self._labels_of = labels_of
        self._snapshot_builder = snapshot_builder
        self._resolve_span = resolve_span
        self._selected_traces = selected_traces
        self._periods = periods
        self._include_internal = include_internal
        self._previous_samples: dict[int, _PreviousSample] = {}
        self._last_focused_ns = periods.focused_ns  # the last one that a raw snapshot has said

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """The samples of `raw` that belong to selected traces."""
        found = [
            (raw_thread, span)
            for raw_thread in raw.threads
            if (span := self._span_of(raw_thread, raw.time_ns)) is not None
        ]
        thread_infos = (
            self._snapshot_builder.thread_infos([raw_thread for raw_thread, _ in found], raw.time_ns) if found else []
        )
        before = {}
        samples = []
        for (raw_thread, span), info in zip(found, thread_infos, strict=True):
            if self._include_internal or not is_excluded(raw_thread.stack, info.thread.name):
                samples.append(self._sample(raw, raw_thread, span, info))
                before[raw_thread.key] = _PreviousSample(span.trace_id, raw.time_ns - raw.latency_ns, raw_thread.cpu_ns)
        self._previous_samples = before
        return Snapshot(raw.time_ns, self._period_ns(raw), tuple(samples), source=InstrumentationSource.SNAPSHOT)

    def _period_ns(self, raw: RawSnapshot) -> int:
        """How far apart the ticks are at which selected traces are looked at."""
        if not raw.period_ns:
            return self._periods.min_focused_ns
        if raw.is_focused:
            self._last_focused_ns = raw.period_ns
            return raw.period_ns
        if self._periods.is_all_threads_base:
            return self._periods.stretched(raw.period_ns).min_focused_ns
        return min(raw.period_ns, self._last_focused_ns)

    def _span_of(self, raw_thread: RawThread, time_ns: int) -> SpanRef | None:
        span = (
            None
            if raw_thread.context is None or not raw_thread.stack.frames
            else self._resolve_span(raw_thread.context)
        )
        return span if span is not None and self._selected_traces.is_selected(span.trace_id, time_ns) else None

    def _sample(self, raw: RawSnapshot, raw_thread: RawThread, span: SpanRef, info: ThreadInfo) -> Sample:
        delta = self._time_delta(raw, raw_thread, span)
        running = is_running(raw_thread, delta)
        thread = ThreadSample(
            info.thread,
            raw_thread.stack,
            raw_thread.cpu_ns,
            info.age_ns(to_boottime_ns(raw.time_ns)),
            read_nice_value(info.thread.native_id),
            running,
            "" if running else raw_thread.stack.derive(waiting_on),
            delta.wall_ns,
            delta.cpu_ns,
        )
        labels = () if raw_thread.labels is None else self._labels_of(raw_thread.labels)
        return Sample(raw.time_ns, self._period_ns(raw), thread, span, labels, source=InstrumentationSource.SNAPSHOT)

    def _time_delta(self, raw: RawSnapshot, raw_thread: RawThread, span: SpanRef) -> ThreadTimeDelta:
        """Wall and CPU time that a sample stands for."""
        period_ns, now_ns, cpu_ns = self._period_ns(raw), raw.time_ns - raw.latency_ns, raw_thread.cpu_ns
        before, entry = self._previous_samples.get(raw_thread.key), self._selected_traces.entry_span(span.trace_id)
        if before is not None and entry is not None and entry.time_ns > before.time_ns:
            before = None  # of an earlier visit: nobody ticks while there is no trace, so its end was not seen
        if before is not None and before.trace_id == span.trace_id:
            wall_ns, used_ns = now_ns - before.time_ns, cpu_ns - before.cpu_ns
        elif entry is not None and entry.ident == raw_thread.ident:
            wall_ns, used_ns = now_ns - entry.time_ns, cpu_ns - entry.cpu_ns
        else:
            wall_ns, used_ns = period_ns, 0
        part_ns = min(max(wall_ns, 0), max(raw.since_previous_ns, period_ns))
        if not cpu_ns or wall_ns <= 0:
            return ThreadTimeDelta(part_ns, 0)
        return ThreadTimeDelta(part_ns, min(max(used_ns, 0) * part_ns // wall_ns, part_ns))
