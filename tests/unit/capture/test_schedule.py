"""The two rhythms of a ticker, and which threads its focus finds: the same with both walkers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext
from running_ticker import running

from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.sampler import Limit, Sampler
from splunk_profiler.capture.schedule import NEVER_NS, Schedule, Tick, TraceFilter
from splunk_profiler.capture.walker import Choice, Ticker, make_ticker
from splunk_profiler.otel import spans
from splunk_profiler.raw import Periods, RawSnapshot

CURRENT: ContextVar[Any] = ContextVar("current")
LONG_NS = 30_000_000_000
SECOND_NS = 1_000_000_000
HOUR_NS = 3_600_000_000_000
_NATIVE = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)


# ---- the rhythm ----


def test_without_traces_there_are_deadlines_of_all_threads_only() -> None:
    rhythm = Schedule(1_000, Periods(100, 10))
    assert rhythm.next_ns(1_000, focused=False) == 1_100
    assert rhythm.take(1_103) == Tick(1_100, 100, focused=False, skipped=0)
    assert rhythm.next_ns(1_103, focused=False) == 1_200


def test_deadlines_of_the_focus_come_between_and_do_not_move_those_of_all() -> None:
    rhythm, now_ns, seen = Schedule(0, Periods(35, 10)), 0, []
    while now_ns < 105:
        now_ns = rhythm.next_ns(now_ns, focused=True)
        seen.append((rhythm.take(now_ns).focused, now_ns))
    of_all = [at_ns for focused, at_ns in seen if not focused]
    assert of_all == [35, 70, 105]
    assert [at_ns for focused, at_ns in seen if focused] == [10, 20, 30, 45, 55, 65, 80, 90, 100]


def test_a_deadline_of_both_is_one_of_all_threads() -> None:
    rhythm = Schedule(0, Periods(20, 10))
    assert rhythm.next_ns(0, focused=True) == 10
    assert rhythm.take(10).focused
    assert rhythm.next_ns(10, focused=True) == 20
    assert not rhythm.take(20).focused
    assert rhythm.next_ns(20, focused=True) == 30


def test_the_focus_begins_at_once_and_on_the_grid() -> None:
    rhythm = Schedule(0, Periods(1_000, 10))
    assert rhythm.next_ns(123, focused=False) == 1_000
    assert rhythm.next_ns(123, focused=True) == 130
    assert rhythm.next_ns(124, focused=False) == 1_000
    assert rhythm.next_ns(777, focused=True) == 780


def test_after_a_stall_there_is_one_tick_and_not_a_burst() -> None:
    rhythm = Schedule(0, Periods(1_000, 10))
    rhythm.next_ns(0, focused=True)
    assert rhythm.take(57) == Tick(50, 10, focused=True, skipped=4)
    assert rhythm.next_ns(57, focused=True) == 60
    assert rhythm.take(3_456) == Tick(3_000, 1_000, focused=False, skipped=2)
    assert rhythm.next_ns(3_456, focused=True) == 3_460


def test_without_a_rhythm_of_all_threads_there_is_nothing_to_do_until_there_is_a_trace() -> None:
    rhythm = Schedule(5, Periods(0, 10))
    assert rhythm.next_ns(99, focused=False) == NEVER_NS
    assert rhythm.next_ns(99, focused=True) == 105
    assert rhythm.take(105) == Tick(105, 10, focused=True, skipped=0)


def test_other_periods_move_both_deadlines_at_once_and_back() -> None:
    rhythm = Schedule(0, Periods(1_000, 10))
    assert rhythm.next_ns(1_003, focused=True) == 1_000
    rhythm.take(1_003)
    assert rhythm.next_ns(1_014, focused=True) == 1_020
    rhythm.follow(Periods(2_500, 25), 1_014)
    assert rhythm.next_ns(1_014, focused=False) == 3_500
    assert rhythm.next_ns(1_014, focused=True) == 1_025
    assert rhythm.take(1_025) == Tick(1_025, 25, focused=True, skipped=0)
    rhythm.follow(Periods(1_000, 10), 1_031)
    assert rhythm.next_ns(1_031, focused=True) == 1_040
    assert rhythm.next_ns(1_031, focused=False) == 2_000


def test_a_rhythm_of_all_threads_that_comes_later_begins_then() -> None:
    rhythm = Schedule(0, Periods(0, 10))
    rhythm.follow(Periods(100, 10), 5_000)
    assert rhythm.next_ns(5_000, focused=False) == 5_100


def test_both_periods_are_stretched_in_one_ratio() -> None:
    assert Periods(1_000, 10).stretched(2_400) == Periods(2_400, 24)
    assert Periods(1_000, 0).stretched(2_400) == Periods(2_400, 0)
    assert Periods(0, 10).stretched(24) == Periods(0, 24)
    assert Periods(1, 3_000).stretched(60_000) == Periods(60_000, 60_000)


@pytest.mark.parametrize(
    ("all_s", "ratio", "then_s"), [(20, 1, 20), (20, 2, 40), (20, 60, 60), (60, 60, 60), (600, 60, 600)]
)
def test_where_all_threads_are_looked_at_seldom_the_focus_is_stretched_all_the_same(
    all_s: int, ratio: int, then_s: int
) -> None:
    configured = Periods(all_s * SECOND_NS, 10_000_000)
    assert (configured.all_leads, configured.leading_ns) == (False, SECOND_NS)
    assert configured.stretched(ratio * SECOND_NS) == Periods(then_s * SECOND_NS, ratio * 10_000_000)
    assert Periods(all_s * SECOND_NS, 0).leading_ns == all_s * SECOND_NS


# ---- what the focus finds ----


class Bench:
    """A ticker of one kind with a focus, and threads that hold still in contexts."""

    def __init__(self, walker: str) -> None:
        self.traces: dict[int, Any] = {}
        self._contexts: dict[int, Any] = {}
        self._over = threading.Event()
        self._threads = ExitStack()
        focus = TraceFilter(self.traces, spans.span_key(), spans.trace_id)
        self.ticker: Ticker = make_ticker(Choice(walker, "tested"), CURRENT, self._contexts.get, 100, focus=focus)

    def hold(self, context: Any) -> int:
        """The ident of a new thread whose OpenTelemetry context is `context`; None: it has none."""
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
        """The idents of the threads that a focused capture finds."""
        self.ticker.capture(focused=True)
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


def _in(span: Any) -> Context:
    return trace.set_span_in_context(span, Context())


def _span_of(trace_id: int) -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(trace_id, 1, is_remote=False))


def test_only_threads_that_work_for_a_trace_in_the_focus_are_found(bench: Bench) -> None:
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
    (everybody,) = bench.ticker.drain(0)
    assert {first, same, other, none, without} <= {raw.ident for raw in everybody.threads}
    assert not everybody.focused


def test_spans_of_the_sdk_are_told_by_their_traces(bench: Bench) -> None:
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
    while before[0] is not again[0] or before[1] is not again[1]:  # a thread may be on its way into the wait
        before, again = again, stacks()
    bench.ticker.capture(focused=True)
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
        bench.ticker.focus()
        seen = _until(bench.ticker, lambda found: len(found) >= 5)
        assert all(raw.focused for raw in seen)
        assert all([one.ident for one in raw.threads] == [wanted] for raw in seen)
        assert all(raw.since_ns > 0 for raw in seen[1:])
        bench.traces.clear()
        while bench.ticker.drain(20_000_000):
            pass
        bench.traces[1] = 0
        bench.ticker.focus()
        assert _until(bench.ticker, lambda found: len(found) >= 2)


def test_a_ticker_may_have_the_focus_alone(bench: Bench) -> None:
    wanted = bench.hold(_in(_span_of(1)))
    with running(bench.ticker, 0, 1_000_000):
        bench.traces[1] = 0
        bench.ticker.focus()
        seen = _until(bench.ticker, lambda found: len(found) >= 3)
    assert {one.ident for raw in seen for one in raw.threads} == {wanted}


def test_a_change_of_pace_moves_the_deadlines_of_the_focus_at_once(bench: Bench) -> None:
    bench.hold(_in(_span_of(1)))
    bench.traces[1] = 0
    bench.ticker.focus()
    with running(bench.ticker, HOUR_NS, HOUR_NS):
        seen: list[RawSnapshot] = []
        while not seen:  # the first calls may come before it runs
            bench.ticker.pace(HOUR_NS, 2_000_000)
            seen += bench.ticker.drain(10_000_000)
        assert (seen[0].focused, seen[0].period_ns) == (True, 2_000_000)
        bench.ticker.pace(3_000_000)
        seen = _until(bench.ticker, lambda found: any(not raw.focused for raw in found))
    assert {(raw.focused, raw.period_ns) for raw in seen} <= {(True, 2_000_000), (False, 3_000_000)}


@pytest.mark.parametrize(("all_ns", "some_ns"), [(4_000_000, 1_000_000), (0, 1_000_000), (HOUR_NS, 1_000_000)])
def test_a_sampler_with_a_limit_stretches_both_rhythms(bench: Bench, all_ns: int, some_ns: int) -> None:
    bench.hold(_in(_span_of(1)))
    bench.traces[1] = 0
    bench.ticker.focus()
    handled: SimpleQueue[RawSnapshot] = SimpleQueue()
    changed: SimpleQueue[int] = SimpleQueue()
    periods = Periods(all_ns, some_ns)
    limit = Limit(OverheadLimiter(periods.leading_ns, 0.02), time.monotonic_ns, changed.put)
    sampler = Sampler(bench.ticker, all_ns, handled.put, limit, focused_period_ns=some_ns)
    sampler.start()
    stretched = periods.stretched(changed.get(timeout=60))
    assert stretched.focused_ns > some_ns
    wanted = {(True, stretched.focused_ns)} | ({(False, stretched.all_ns)} if periods.all_leads else set())
    while wanted:
        raw = handled.get(timeout=60)
        wanted.discard((raw.focused, raw.period_ns))
    assert sampler.stop(60)


def test_ticks_of_all_threads_go_on_beside_those_of_the_focus(bench: Bench) -> None:
    wanted = bench.hold(_in(_span_of(1)))
    bench.traces[1] = 0
    bench.ticker.focus()
    with running(bench.ticker, 20_000_000, 2_000_000):
        seen = _until(bench.ticker, lambda found: sum(not raw.focused for raw in found) >= 3)
    assert any(raw.focused for raw in seen)
    for raw in seen:
        idents = {one.ident for one in raw.threads}
        assert idents == {wanted} if raw.focused else wanted in idents and len(idents) > 1


# ---- the native walker alone ----


@_NATIVE
@pytest.mark.parametrize("method", ["run", "pace"])
def test_a_rhythm_for_a_focus_that_is_not_there_is_refused(method: str) -> None:
    ticker = make_ticker(Choice("native", "tested"), CURRENT, lambda _: None, 100)
    with pytest.raises(ValueError, match="without focus"):
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
        held = {bench.hold({spans.span_key(): made()}) for made in (Proxy, Property, Other)}
        held.add(bench.hold("no mapping at all"))
        bench.traces[1] = 0
        assert bench.see() == held
    finally:
        bench.close()
