"""The two periods of a ticker, and the threads of focused captures, on both walkers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import count
from queue import SimpleQueue
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext
from running_ticker import running

from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.sampler import OverheadLimit, Sampler
from splunk_profiler.capture.schedule import NEVER_NS, Schedule, Tick
from splunk_profiler.capture.walker import Ticker, WalkerChoice, make_ticker
from splunk_profiler.otel import spans
from splunk_profiler.raw import Periods, RawSnapshot, TraceFilter

CURRENT: ContextVar[Any] = ContextVar("current")
LONG_NS = 30_000_000_000
SECOND_NS = 1_000_000_000
HOUR_NS = 3_600_000_000_000
_NATIVE = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)


def test_without_traces_there_are_deadlines_of_all_threads_only() -> None:
    schedule = Schedule(1_000, Periods(100, 10))
    assert schedule.next_deadline_ns(1_000, has_traces=False) == 1_100
    assert schedule.pop_tick(1_103) == Tick(1_100, 100, is_focused=False, skipped=0)
    assert schedule.next_deadline_ns(1_103, has_traces=False) == 1_200


def test_focused_deadlines_come_between_and_do_not_move_those_of_all() -> None:
    schedule, now_ns, seen = Schedule(0, Periods(35, 10)), 0, []
    while now_ns < 105:
        now_ns = schedule.next_deadline_ns(now_ns, has_traces=True)
        seen.append((schedule.pop_tick(now_ns).is_focused, now_ns))
    of_all = [at_ns for is_focused, at_ns in seen if not is_focused]
    assert of_all == [35, 70, 105]
    assert [at_ns for is_focused, at_ns in seen if is_focused] == [10, 20, 30, 45, 55, 65, 80, 90, 100]


def test_a_deadline_of_both_is_one_of_all_threads() -> None:
    schedule = Schedule(0, Periods(20, 10))
    assert schedule.next_deadline_ns(0, has_traces=True) == 10
    assert schedule.pop_tick(10).is_focused
    assert schedule.next_deadline_ns(10, has_traces=True) == 20
    assert not schedule.pop_tick(20).is_focused
    assert schedule.next_deadline_ns(20, has_traces=True) == 30


def test_focused_deadlines_begin_at_once_and_on_the_grid() -> None:
    schedule = Schedule(0, Periods(1_000, 10))
    assert schedule.next_deadline_ns(123, has_traces=False) == 1_000
    assert schedule.next_deadline_ns(123, has_traces=True) == 130
    assert schedule.next_deadline_ns(124, has_traces=False) == 1_000
    assert schedule.next_deadline_ns(777, has_traces=True) == 780


def test_after_a_stall_there_is_one_tick_and_not_a_burst() -> None:
    schedule = Schedule(0, Periods(1_000, 10))
    schedule.next_deadline_ns(0, has_traces=True)
    assert schedule.pop_tick(57) == Tick(50, 10, is_focused=True, skipped=4)
    assert schedule.next_deadline_ns(57, has_traces=True) == 60
    assert schedule.pop_tick(3_456) == Tick(3_000, 1_000, is_focused=False, skipped=2)
    assert schedule.next_deadline_ns(3_456, has_traces=True) == 3_460


def test_schedule_without_all_threads_is_idle_until_there_is_a_trace() -> None:
    schedule = Schedule(5, Periods(0, 10))
    assert schedule.next_deadline_ns(99, has_traces=False) == NEVER_NS
    assert schedule.next_deadline_ns(99, has_traces=True) == 105
    assert schedule.pop_tick(105) == Tick(105, 10, is_focused=True, skipped=0)


def test_other_periods_move_both_deadlines_at_once_and_back() -> None:
    schedule = Schedule(0, Periods(1_000, 10))
    assert schedule.next_deadline_ns(1_003, has_traces=True) == 1_000
    schedule.pop_tick(1_003)
    assert schedule.next_deadline_ns(1_014, has_traces=True) == 1_020
    schedule.set_periods(Periods(2_500, 25), 1_014)
    assert schedule.next_deadline_ns(1_014, has_traces=False) == 3_500
    assert schedule.next_deadline_ns(1_014, has_traces=True) == 1_025
    assert schedule.pop_tick(1_025) == Tick(1_025, 25, is_focused=True, skipped=0)
    schedule.set_periods(Periods(1_000, 10), 1_031)
    assert schedule.next_deadline_ns(1_031, has_traces=True) == 1_040
    assert schedule.next_deadline_ns(1_031, has_traces=False) == 2_000


def test_a_rhythm_of_all_threads_that_comes_later_begins_then() -> None:
    schedule = Schedule(0, Periods(0, 10))
    schedule.set_periods(Periods(100, 10), 5_000)
    assert schedule.next_deadline_ns(5_000, has_traces=False) == 5_100


def test_both_periods_are_stretched_in_one_ratio() -> None:
    assert Periods(1_000, 10).stretched(2_400) == Periods(2_400, 24)
    assert Periods(1_000, 0).stretched(2_400) == Periods(2_400, 0)
    assert Periods(0, 10).stretched(24) == Periods(0, 24)
    assert Periods(1, 3_000).stretched(60_000) == Periods(60_000, 60_000)


@pytest.mark.parametrize(
    ("all_s", "ratio", "then_s"), [(20, 1, 20), (20, 2, 40), (20, 60, 60), (60, 60, 60), (600, 60, 600)]
)
def test_the_focused_period_is_stretched_if_all_threads_are_sampled_rarely(all_s: int, ratio: int, then_s: int) -> None:
    configured = Periods(all_s * SECOND_NS, 10_000_000)
    assert (configured.is_all_threads_base, configured.base_ns) == (False, SECOND_NS)
    assert configured.stretched(ratio * SECOND_NS) == Periods(then_s * SECOND_NS, ratio * 10_000_000)
    assert Periods(all_s * SECOND_NS, 0).base_ns == all_s * SECOND_NS


class Bench:
    """A ticker with a trace filter, and threads that wait in given contexts."""

    def __init__(self, walker: str) -> None:
        self.traces: dict[int, Any] = {}
        self._contexts: dict[int, Any] = {}
        self._over = threading.Event()
        self._threads = ExitStack()
        trace_filter = TraceFilter(self.traces, spans.SPAN_KEY, spans.trace_id)
        self.ticker: Ticker = make_ticker(
            WalkerChoice(walker, "tested"), CURRENT, self._contexts.get, 100, trace_filter=trace_filter
        )

    def hold(self, context: Any) -> int:
        """Start a thread whose OpenTelemetry context is `context` (None: none) and return its ident."""
        there = threading.Event()

        def wait() -> None:
            if context is not None:
                CURRENT.set(context)
                self._contexts[threading.get_ident()] = context
            there.set()
            self._over.wait()

        thread = threading.Thread(target=wait)
        thread.start()
        there.wait()
        self._threads.callback(thread.join)
        return thread.ident or 0

    def see(self) -> set[int]:
        """Return the idents of the threads in a focused capture."""
        self.ticker.capture(is_focused=True)
        return {raw.ident for snapshot in self.ticker.drain(0) for raw in snapshot.threads}

    def close(self) -> None:
        self.ticker.stop()
        self._over.set()
        self._threads.close()


@pytest.fixture(params=[pytest.param("native", marks=_NATIVE), "portable"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.close()


def test_the_first_deadline_may_come_before_a_period_is_over(bench: Bench) -> None:
    with running(bench.ticker, HOUR_NS, 0, HOUR_NS):
        (snapshot,) = bench.ticker.drain(LONG_NS)
    assert snapshot.period_ns == HOUR_NS


def _in(span: Any) -> Context:
    return trace.set_span_in_context(span, Context())


def _span_of(trace_id: int) -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(trace_id, 1, is_remote=False))


def test_only_threads_that_work_for_a_trace_in_the_filter_are_found(bench: Bench) -> None:
    first, same, other, none, without = (
        bench.hold(_in(_span_of(2**127 + 1))),
        bench.hold(_in(_span_of(2**127 + 1))),
        bench.hold(_in(_span_of(2**127 + 2))),
        bench.hold(Context()),
        bench.hold(None),
    )
    assert bench.see() == set()
    bench.traces[2**127 + 1] = 0
    assert bench.see() == {first, same}
    bench.traces[2**127 + 2] = 0
    assert bench.see() == {first, same, other}
    bench.traces.clear()
    assert bench.see() == set()
    bench.ticker.capture()
    (everyone,) = bench.ticker.drain(0)
    assert {first, same, other, none, without} <= {raw.ident for raw in everyone.threads}
    assert not everyone.is_focused


def test_spans_of_the_sdk_are_found_by_their_traces(bench: Bench) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("tests")
    wanted, other = tracer.start_span("wanted"), tracer.start_span("other")
    child = tracer.start_span("child", context=trace.set_span_in_context(wanted))
    found, beside = bench.hold(_in(child)), bench.hold(_in(other))
    bench.traces[wanted.get_span_context().trace_id] = 0
    assert bench.see() == {found}
    assert beside


def test_capturing_some_leaves_the_stacks_of_the_others_known(bench: Bench) -> None:
    wanted, other = bench.hold(_in(_span_of(1))), bench.hold(_in(_span_of(2)))
    bench.traces[1] = 0

    def stacks() -> tuple[Any, Any]:
        bench.ticker.capture()
        (snapshot,) = bench.ticker.drain(0)
        seen = {raw.ident: raw.stack for raw in snapshot.threads}
        return seen[wanted], seen[other]

    before, again = stacks(), stacks()
    while before[0] is not again[0] or before[1] is not again[1]:  # a thread may not wait yet
        before, again = again, stacks()
    bench.ticker.capture(is_focused=True)
    (focused,) = bench.ticker.drain(0)
    assert [raw.stack for raw in focused.threads] == [before[0]]
    assert all(one is then for one, then in zip(stacks(), before, strict=True))


def _until(ticker: Ticker, enough: Callable[[list[RawSnapshot]], bool]) -> list[RawSnapshot]:
    seen: list[RawSnapshot] = []
    while not enough(seen):
        seen += ticker.drain(LONG_NS)
    return seen


def test_a_trace_wakes_a_ticker_that_would_have_slept_for_long(bench: Bench) -> None:
    wanted = bench.hold(_in(_span_of(1)))
    with running(bench.ticker, LONG_NS, 2_000_000):
        bench.traces[1] = 0
        bench.ticker.notify_trace_added()
        seen = _until(bench.ticker, lambda found: len(found) >= 5)
        assert all(raw.is_focused for raw in seen)
        assert all([one.ident for one in raw.threads] == [wanted] for raw in seen)
        assert all(raw.since_previous_ns > 0 for raw in seen[1:])
        bench.traces.clear()
        while bench.ticker.drain(20_000_000):
            pass
        bench.traces[1] = 0
        bench.ticker.notify_trace_added()
        assert _until(bench.ticker, lambda found: len(found) >= 2)


def test_a_ticker_may_have_focused_captures_only(bench: Bench) -> None:
    wanted = bench.hold(_in(_span_of(1)))
    with running(bench.ticker, 0, 1_000_000):
        bench.traces[1] = 0
        bench.ticker.notify_trace_added()
        seen = _until(bench.ticker, lambda found: len(found) >= 3)
    assert {one.ident for raw in seen for one in raw.threads} == {wanted}


def test_a_change_of_periods_moves_the_focused_deadlines_at_once(bench: Bench) -> None:
    bench.hold(_in(_span_of(1)))
    bench.traces[1] = 0
    bench.ticker.notify_trace_added()
    with running(bench.ticker, HOUR_NS, HOUR_NS):
        seen: list[RawSnapshot] = []
        while not seen:  # the first calls may come before it runs
            bench.ticker.set_periods(HOUR_NS, 2_000_000)
            seen += bench.ticker.drain(10_000_000)
        assert (seen[0].is_focused, seen[0].period_ns) == (True, 2_000_000)
        bench.ticker.set_periods(3_000_000)
        seen = _until(bench.ticker, lambda found: any(not raw.is_focused for raw in found))
    assert {(raw.is_focused, raw.period_ns) for raw in seen} <= {(True, 2_000_000), (False, 3_000_000)}


@pytest.mark.parametrize(("all_ns", "some_ns"), [(4_000_000, 1_000_000), (0, 1_000_000), (HOUR_NS, 1_000_000)])
def test_a_sampler_with_a_limit_stretches_both_periods(bench: Bench, all_ns: int, some_ns: int) -> None:
    bench.hold(_in(_span_of(1)))
    bench.traces[1] = 0
    bench.ticker.notify_trace_added()
    handled: SimpleQueue[RawSnapshot] = SimpleQueue()
    changed: SimpleQueue[int] = SimpleQueue()
    periods = Periods(all_ns, some_ns)
    limit = OverheadLimit(OverheadLimiter(periods.base_ns, 0.02), time.monotonic_ns, changed.put)
    sampler = Sampler(bench.ticker, periods, handled.put, limit)
    sampler.start()
    stretched = periods.stretched(changed.get(timeout=60))
    assert stretched.focused_ns > some_ns
    wanted = {(True, stretched.focused_ns)} | ({(False, stretched.all_ns)} if periods.is_all_threads_base else set())
    while wanted:
        raw = handled.get(timeout=60)
        wanted.discard((raw.is_focused, raw.period_ns))
    assert sampler.stop(60)


def test_ticks_of_all_threads_continue_beside_focused_ones(bench: Bench) -> None:
    wanted = bench.hold(_in(_span_of(1)))
    bench.traces[1] = 0
    bench.ticker.notify_trace_added()
    with running(bench.ticker, 20_000_000, 2_000_000):
        seen = _until(bench.ticker, lambda found: 3 <= sum(not raw.is_focused for raw in found) < len(found))
    for raw in seen:
        idents = {one.ident for one in raw.threads}
        assert idents == {wanted} if raw.is_focused else wanted in idents and len(idents) > 1


@_NATIVE
def test_capture_that_lasts_longer_than_the_next_tick_has_its_own_period() -> None:
    bench = Bench("native")
    over = threading.Event()
    busy = threading.Thread(target=lambda: all(not over.is_set() for _ in count()))  # captures, from CPython 3.12 on
    busy.start()
    try:
        for trace_id in range(1, 100):
            bench.hold(_in(_span_of(trace_id)))
        bench.traces[1] = 0
        bench.ticker.notify_trace_added()
        with running(bench.ticker, 5_000_000, 10_000):
            seen = _until(bench.ticker, lambda found: sum(not raw.is_focused for raw in found) >= 100)
    finally:
        over.set()
        busy.join()
        bench.close()
    assert {(raw.is_focused, raw.period_ns) for raw in seen} == {(True, 10_000), (False, 5_000_000)}


@_NATIVE
@pytest.mark.parametrize("method", ["run", "set_periods"])
def test_a_focused_period_without_a_trace_filter_is_refused(method: str) -> None:
    ticker = make_ticker(WalkerChoice("native", "tested"), CURRENT, lambda _: None, 100)
    with pytest.raises(ValueError, match="without trace_filter"):
        getattr(ticker, method)(LONG_NS, 1)


@_NATIVE
def test_what_would_have_to_be_asked_in_python_is_left_to_the_worker() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("the walker must run no Python code")

    class Property:
        @property
        def _context(self) -> Any:
            raise AssertionError("the walker must run no Python code")

    class Other:
        _context: object

        def __init__(self) -> None:
            self._context = ("not", "an", "id")

    bench = Bench("native")
    try:
        held = {bench.hold({spans.SPAN_KEY: made()}) for made in (Proxy, Property, Other)}
        held.add(bench.hold("no mapping at all"))
        bench.traces[1] = 0
        assert bench.see() == held
    finally:
        bench.close()
