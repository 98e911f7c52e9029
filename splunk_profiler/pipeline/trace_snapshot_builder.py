"""Raw snapshots → samples of the traces that are profiled closely.

`TraceSnapshotBuilder` runs on the sampling worker's thread, beside `SnapshotBuilder`. It shares what is known of
threads with that, but no times: the samples of all threads are as they would be without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from splunk_profiler.model import Sample, Snapshot, Source, SpanRef, ThreadSample
from splunk_profiler.pipeline.idle_threads import os_priority
from splunk_profiler.pipeline.snapshot_builder import (
    Associate,
    Labels,
    SnapshotBuilder,
    is_left_out,
    is_running,
    on_boottime_ns,
)
from splunk_profiler.pipeline.stack_filters import waiting_on
from splunk_profiler.pipeline.thread_registry import Life
from splunk_profiler.pipeline.thread_times import Spent
from splunk_profiler.raw import Periods, RawSnapshot, RawThread


class Selected(Protocol):
    """Says what belongs to the traces that are profiled; see `otel.trace_selector`."""

    def wants(self, trace_id: int, time_ns: int) -> bool: ...
    def beginning(self, trace_id: int) -> Any | None: ...


class _Seen(NamedTuple):
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
        capture: knows the threads.
        associate: OpenTelemetry context → span.
        selected: which traces.
        periods: the distances of ticks, where a raw snapshot does not say others.
        include_internal: also keep the profiler's, the SDK's and gRPC's threads.
        labels_of: see `SnapshotBuilder`.
    """

    def __init__(
        self,
        capture: SnapshotBuilder,
        associate: Associate,
        selected: Selected,
        periods: Periods,
        *,
        include_internal: bool = False,
        labels_of: Callable[[Any], Labels] = lambda _: (),
    ) -> None:
        self._labels_of = labels_of
        self._capture = capture
        self._associate = associate
        self._selected = selected
        self._periods = periods
        self._include_internal = include_internal
        self._before: dict[int, _Seen] = {}
        self._focused_ns = periods.focused_ns  # the last one that a raw snapshot has said

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """The samples of `raw` that belong to selected traces."""
        found = [(seen, span) for seen in raw.threads if (span := self._span_of(seen, raw.time_ns)) is not None]
        lives = self._capture.lives([seen for seen, _ in found], raw.time_ns) if found else []
        before = {}
        samples = []
        for (seen, span), life in zip(found, lives, strict=True):
            if self._include_internal or not is_left_out(seen.stack, life.thread.name):
                samples.append(self._sample(raw, seen, span, life))
                before[seen.key] = _Seen(span.trace_id, raw.time_ns - raw.latency_ns, seen.cpu_ns)
        self._before = before
        return Snapshot(raw.time_ns, self._period_ns(raw), tuple(samples), source=Source.SNAPSHOT)

    def _period_ns(self, raw: RawSnapshot) -> int:
        """How far apart the ticks are at which selected traces are looked at."""
        if not raw.period_ns:
            return self._periods.closest_ns
        if raw.focused:
            self._focused_ns = raw.period_ns
            return raw.period_ns
        if self._periods.all_leads:
            return self._periods.stretched(raw.period_ns).closest_ns
        return min(raw.period_ns, self._focused_ns)

    def _span_of(self, seen: RawThread, time_ns: int) -> SpanRef | None:
        span = None if seen.context is None or not seen.stack.frames else self._associate(seen.context)
        return span if span is not None and self._selected.wants(span.trace_id, time_ns) else None

    def _sample(self, raw: RawSnapshot, seen: RawThread, span: SpanRef, life: Life) -> Sample:
        spent = self._spent(raw, seen, span)
        running = is_running(seen, spent)
        thread = ThreadSample(
            life.thread,
            seen.stack,
            seen.cpu_ns,
            life.age_ns(on_boottime_ns(raw.time_ns)),
            os_priority(life.thread.native_id),
            running,
            "" if running else seen.stack.derive(waiting_on),
            spent.wall_ns,
            spent.cpu_ns,
        )
        labels = () if seen.labels is None else self._labels_of(seen.labels)
        return Sample(raw.time_ns, self._period_ns(raw), thread, span, labels, source=Source.SNAPSHOT)

    def _spent(self, raw: RawSnapshot, seen: RawThread, span: SpanRef) -> Spent:
        """Wall and CPU time that a sample stands for."""
        period_ns, now_ns, cpu_ns = self._period_ns(raw), raw.time_ns - raw.latency_ns, seen.cpu_ns
        before, began = self._before.get(seen.key), self._selected.beginning(span.trace_id)
        if before is not None and began is not None and began.time_ns > before.time_ns:
            before = None  # of an earlier visit: nobody ticks while there is no trace, so its end was not seen
        if before is not None and before.trace_id == span.trace_id:
            wall_ns, used_ns = now_ns - before.time_ns, cpu_ns - before.cpu_ns
        elif began is not None and began.ident == seen.ident:
            wall_ns, used_ns = now_ns - began.time_ns, cpu_ns - began.cpu_ns
        else:
            wall_ns, used_ns = period_ns, 0
        part_ns = min(max(wall_ns, 0), max(raw.since_ns, period_ns))
        if not cpu_ns or wall_ns <= 0:
            return Spent(part_ns, 0)
        return Spent(part_ns, min(max(used_ns, 0) * part_ns // wall_ns, part_ns))
