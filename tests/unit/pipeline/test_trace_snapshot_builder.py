"""The times of samples of selected traces, which do not affect the samples of all threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from stream_feed import StreamedBuilder

from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.pipeline.selected_traces import SelectedTraces
from splunk_profiler.pipeline.trace_snapshot_builder import TraceSnapshotBuilder
from splunk_profiler.raw import Periods, RawSnapshot, RawThread
from splunk_profiler.samples import InstrumentationSource, Snapshot
from splunk_profiler.stream.records import TraceRecord

MS = 1_000_000
PERIOD_NS, ALL_NS = 10 * MS, 1_000 * MS
PERIODS = Periods(ALL_NS, PERIOD_NS)
TRACE, OTHER = SpanRef(1, 11, 1), SpanRef(2, 22, 1)


class Began(NamedTuple):
    time_ns: int
    ident: int
    cpu_ns: int


ELSEWHERE = Began(0, 9, 0)  # an entry on a thread that is in no snapshot


class Bench:
    """Ticks with made-up threads: (context, CPU time in ms) by ident."""

    def __init__(self, entry: Began = ELSEWHERE, periods: Periods = PERIODS) -> None:
        self.capture = StreamedBuilder(lambda context: context, period_ns=ALL_NS)
        self._selected_traces = SelectedTraces()
        self.enter(entry)
        self._closely = TraceSnapshotBuilder(self.capture.builder, self._selected_traces, periods)
        self._before_ms = 0
        self._stacks = {
            ident: Stack((Frame("app", f"work_{ident}", "app.py", 1),), truncated=False) for ident in range(5)
        }

    def enter(self, entry: Began) -> None:
        """Have trace 1 come in."""
        self._selected_traces.select(TraceRecord(TRACE.trace_id, *entry))

    def raw(
        self,
        at_ms: int,
        threads: dict[int, tuple[SpanRef | None, int]],
        *,
        is_focused: bool = True,
        period_ns: int = PERIOD_NS,
    ) -> RawSnapshot:
        seen = tuple(
            RawThread(ident, ident, 1000 + ident, self._stacks[ident], context, None, cpu_ms * MS)
            for ident, (context, cpu_ms) in threads.items()
        )
        since_ms, self._before_ms = at_ms - self._before_ms, at_ms
        return RawSnapshot(at_ms * MS, 0, seen, period_ns, is_focused, max(since_ms, 0) * MS)

    def see(self, at_ms: int, threads: dict[int, tuple[SpanRef | None, int]], **more: Any) -> Snapshot:
        captured = self.capture.captured(self.raw(at_ms, threads, **more))
        if not captured.is_focused:
            self.capture.builder.snapshot(captured)
        return self._closely.snapshot(captured)

    def nobody(self, at_ms: int) -> None:
        """Pass a tick without a thread, which makes no snapshot."""
        self._before_ms = at_ms


def _spent(snapshot: Snapshot) -> list[tuple[int, float, float]]:
    seen = [sample.thread for sample in snapshot.samples]
    return [(one.thread.ident, one.wall_delta_ns / MS, one.cpu_delta_ns / MS) for one in seen]


def test_samples_are_of_the_selected_trace_and_say_what_they_are() -> None:
    snapshot = Bench().see(10, {1: (TRACE, 0), 2: (OTHER, 0), 3: (None, 0)})
    (sample,) = snapshot.samples
    assert (sample.source, snapshot.source) == (InstrumentationSource.SNAPSHOT, InstrumentationSource.SNAPSHOT)
    assert (sample.time_ns, sample.period_ns, sample.span) == (10 * MS, PERIOD_NS, TRACE)
    assert sample.thread.thread.ident == 1


def test_a_sample_stands_for_the_time_since_the_one_before() -> None:
    bench = Bench()
    bench.see(10, {1: (TRACE, 100)})
    assert _spent(bench.see(20, {1: (TRACE, 104)})) == [(1, 10, 4)]
    assert _spent(bench.see(75, {1: (TRACE, 150)})) == [(1, 55, 46)]  # there were no ticks in between


def test_first_sample_covers_the_time_since_the_trace_came_to_its_thread() -> None:
    bench = Bench(Began(13 * MS, 1, 100 * MS))
    assert _spent(bench.see(20, {1: (TRACE, 105), 2: (TRACE, 50)})) == [(1, 7, 5), (2, 10, 0)]


def test_what_a_thread_did_for_others_in_between_is_not_counted() -> None:
    bench = Bench()
    bench.see(10, {1: (TRACE, 100)})
    for at_ms in range(20, 50, 10):
        bench.nobody(at_ms)
    assert _spent(bench.see(50, {1: (TRACE, 140)})) == [(1, 10, 10)]
    for at_ms in range(60, 90, 10):
        bench.nobody(at_ms)
    assert _spent(bench.see(90, {1: (TRACE, 160)})) == [(1, 10, 5)]


def test_what_a_thread_did_between_two_visits_of_a_trace_is_not_counted() -> None:
    bench = Bench(Began(1 * MS, 1, 100 * MS))
    bench.see(10, {1: (TRACE, 105)})
    bench.enter(Began(10_003 * MS, 1, 3_000 * MS))
    assert _spent(bench.see(10_010, {1: (TRACE, 3_005), 2: (TRACE, 9)})) == [(1, 7, 5), (2, 10, 0)]


def test_rare_snapshot_of_all_threads_reports_the_period_of_the_trace() -> None:
    bench = Bench(periods=Periods(60_000 * MS, PERIOD_NS))
    assert bench.see(10, {1: (TRACE, 0)}, is_focused=False, period_ns=60_000 * MS).period_ns == PERIOD_NS
    assert bench.see(80, {1: (TRACE, 0)}, period_ns=70 * MS).period_ns == 70 * MS
    assert bench.see(90, {1: (TRACE, 0)}, is_focused=False, period_ns=60_000 * MS).period_ns == 70 * MS


def test_clocks_that_go_back_or_cannot_be_read_spend_nothing() -> None:
    bench = Bench()
    bench.see(20, {1: (TRACE, 100)})
    assert _spent(bench.see(19, {1: (TRACE, 90)})) == [(1, 0, 0)]
    assert _spent(bench.see(30, {1: (TRACE, 0)})) == [(1, 11, 0)]


@pytest.mark.parametrize(
    ("is_focused", "raw_ns", "reported_ns"),
    [
        pytest.param(True, PERIOD_NS, PERIOD_NS, id="focused"),
        pytest.param(True, 24 * MS, 24 * MS, id="focused-stretched"),
        pytest.param(False, ALL_NS, PERIOD_NS, id="all"),
        pytest.param(False, 2_400 * MS, 24 * MS, id="all-stretched"),
        pytest.param(False, 0, PERIOD_NS, id="at-no-deadline"),
    ],
)
def test_samples_report_the_period_of_the_trace_whichever_tick_took_them(
    is_focused: bool, raw_ns: int, reported_ns: int
) -> None:
    snapshot = Bench().see(5_000, {1: (TRACE, 0)}, is_focused=is_focused, period_ns=raw_ns)
    (sample,) = snapshot.samples
    assert (snapshot.period_ns, sample.period_ns) == (reported_ns, reported_ns)


def test_focused_snapshots_leave_the_samples_of_all_threads_unchanged() -> None:
    def run(closely: bool) -> list[Any]:
        bench, snapshots = Bench(), []
        for at_ms in (1_000, 2_000, 3_000):
            threads = {1: (TRACE, at_ms // 2), 2: (None, at_ms // 4)}
            snapshots.append(
                bench.capture.snapshot(bench.raw(at_ms, dict(threads), is_focused=False, period_ns=ALL_NS))
            )
            for step in range(10, 100, 10) if closely else ():
                bench.see(at_ms + step, {1: (TRACE, at_ms // 2 + step)})
        return [
            (sample.thread.thread.index, sample.thread.cpu_delta_ns, sample.thread.running, sample.source)
            for snapshot in snapshots
            for sample in snapshot.samples
        ]

    assert run(closely=True) == run(closely=False)
