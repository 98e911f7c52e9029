"""The step from captured snapshots to samples of the selected traces.

`TraceSnapshotBuilder` works beside `SnapshotBuilder`. Both see the same threads, but have no times in common, so that
it does not change the samples of all threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from splunk_profiler.model import SpanRef
from splunk_profiler.pipeline.selected_traces import SelectedTraces
from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder, make_thread_sample
from splunk_profiler.pipeline.thread_times import ThreadTimeDelta
from splunk_profiler.raw import Periods
from splunk_profiler.samples import InstrumentationSource, Sample, Snapshot
from splunk_profiler.stream.captured import CapturedSnapshot, ThreadState


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
        self._last_focused_ns = periods.focused_ns  # period of the last focused snapshot

    def snapshot(self, captured: CapturedSnapshot) -> Snapshot:
        """Return the samples that belong to selected traces; one of all threads went to the other builder before."""
        period_ns, deadline_ns = self._period_ns(captured), captured.time_ns - captured.latency_ns
        states: Iterable[ThreadState] = captured.threads if captured.is_focused else self._snapshot_builder.states()
        previous_samples = {}
        samples = []
        for state in states:
            span = self._span_of(state, captured.time_ns)
            if span is not None and not self._snapshot_builder.is_excluded(state):
                samples.append(self._sample(captured, state, span, period_ns))
                previous_samples[state.number] = _PreviousSample(span.trace_id, deadline_ns, state.cpu_ns)
        self._previous_samples = previous_samples
        return Snapshot(
            captured.time_ns,
            period_ns,
            tuple(samples),
            source=InstrumentationSource.SNAPSHOT,
            gil_wait_ns=captured.gil_wait_ns,
        )

    def _period_ns(self, captured: CapturedSnapshot) -> int:
        """Return the distance of the ticks that sample selected traces."""
        if not captured.period_ns:
            return self._periods.min_focused_ns
        if captured.is_focused:
            self._last_focused_ns = captured.period_ns
            return captured.period_ns
        if self._periods.is_all_threads_base:
            return self._periods.stretched(captured.period_ns).min_focused_ns
        return min(captured.period_ns, self._last_focused_ns)

    def _span_of(self, state: ThreadState, time_ns: int) -> SpanRef | None:
        span = state.span if state.stack.frames else None
        return span if span is not None and self._selected_traces.is_selected(span.trace_id, time_ns) else None

    def _sample(self, captured: CapturedSnapshot, state: ThreadState, span: SpanRef, period_ns: int) -> Sample:
        delta = self._time_delta(captured, state, span, period_ns)
        sample = make_thread_sample(state, delta, state.cpu_ns)
        source = InstrumentationSource.SNAPSHOT
        return Sample(captured.time_ns, period_ns, sample, span, state.labels, None, source, captured.instant_ns)

    def _time_delta(
        self, captured: CapturedSnapshot, state: ThreadState, span: SpanRef, period_ns: int
    ) -> ThreadTimeDelta:
        """Return the wall and CPU time that a sample stands for."""
        now_ns, cpu_ns = captured.time_ns - captured.latency_ns, state.cpu_ns
        previous, entry = self._previous_samples.get(state.number), self._selected_traces.entry(span.trace_id)
        if previous is not None and entry is not None and entry.time_ns > previous.time_ns:
            previous = None  # from an earlier visit; its end was not seen, as there are no ticks without a trace
        if previous is not None and previous.trace_id == span.trace_id:
            wall_ns, used_ns = now_ns - previous.time_ns, cpu_ns - previous.cpu_ns
        elif entry is not None and entry.ident == state.info.thread.ident:
            wall_ns, used_ns = now_ns - entry.time_ns, cpu_ns - entry.cpu_ns
        else:
            wall_ns, used_ns = period_ns, 0
        part_ns = min(max(wall_ns, 0), max(captured.since_previous_ns, period_ns))
        if not cpu_ns or wall_ns <= 0:
            return ThreadTimeDelta(part_ns, 0)
        return ThreadTimeDelta(part_ns, min(max(used_ns, 0) * part_ns // wall_ns, part_ns))
