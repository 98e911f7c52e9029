"""Tickers whose periods change while they run, and a sampler that changes them, on both walkers."""

from __future__ import annotations

import time
from importlib.util import find_spec
from queue import SimpleQueue

import pytest
from running_ticker import running
from stream_feed import StreamedBuilder

from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.sampler import OverheadLimit, Sampler
from splunk_profiler.capture.walker import Ticker, WalkerChoice, make_ticker
from splunk_profiler.raw import Periods, RawSnapshot

MS = 1_000_000
HOUR_NS = 3_600_000 * MS
LONG_NS = 30_000 * MS

_NATIVE = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)


@pytest.fixture(params=[pytest.param("native", marks=_NATIVE), "portable"])
def ticker(request: pytest.FixtureRequest) -> Ticker:
    return make_ticker(WalkerChoice(request.param, "asked for by the test"), None, lambda _: None, 64)


def test_a_snapshot_says_the_distance_of_its_deadline(ticker: Ticker) -> None:
    ticker.capture()
    assert [raw.period_ns for raw in ticker.drain(0)] == [0]
    seen: list[int] = []
    with running(ticker, 5 * MS):
        while len(seen) < 5:
            seen += [raw.period_ns for raw in ticker.drain(LONG_NS)]
        assert set(seen) == {5 * MS}
        ticker.set_periods(7 * MS)
        while seen.count(7 * MS) < 5:
            seen += [raw.period_ns for raw in ticker.drain(LONG_NS)]
    assert seen == sorted(seen)
    counters = ticker.counters()
    assert counters.due == counters.captured - 1 + counters.missed


def test_shorter_period_counts_from_the_last_deadline(ticker: Ticker) -> None:
    with running(ticker, HOUR_NS):
        drained: list[RawSnapshot] = []
        while not drained:  # the first calls may come before it runs
            ticker.set_periods(2 * MS)
            drained += ticker.drain(10 * MS)
    assert drained[0].period_ns == 2 * MS


@_NATIVE
@pytest.mark.parametrize("period_ns", [0, -1, 86_401 * 1_000 * MS])
def test_a_distance_that_is_none_is_refused(period_ns: int) -> None:
    ticker = make_ticker(WalkerChoice("native", ""), None, lambda _: None, 64)
    with pytest.raises(ValueError, match="period_ns"):
        ticker.set_periods(period_ns)


def test_samples_carry_the_distance_that_was_in_force(ticker: Ticker) -> None:
    capture = StreamedBuilder(period_ns=HOUR_NS, include_internal=True)
    with running(ticker, 3 * MS):
        (first, *_) = ticker.drain(LONG_NS)
    snapshot = capture.snapshot(first)
    assert {snapshot.period_ns, *(sample.period_ns for sample in snapshot.samples)} == {3 * MS}


def test_sampler_over_its_limit_samples_less_often_and_reports_it(ticker: Ticker) -> None:
    handled: SimpleQueue[RawSnapshot] = SimpleQueue()
    changed: SimpleQueue[int] = SimpleQueue()
    limit = OverheadLimit(OverheadLimiter(2 * MS, 0.02), time.monotonic_ns, changed.put)
    sampler = Sampler(ticker, Periods(2 * MS), handled.put, limit)
    sampler.start()
    period_ns = changed.get(timeout=60)
    assert period_ns > 2 * MS
    while handled.get(timeout=60).period_ns != period_ns:
        pass
    assert sampler.stop(60)


def test_a_sampler_that_keeps_to_its_limit_is_left_alone(ticker: Ticker) -> None:
    handled: SimpleQueue[RawSnapshot] = SimpleQueue()
    changed: list[int] = []
    limit = OverheadLimit(OverheadLimiter(100 * MS, 1.0), lambda: 0, changed.append)
    sampler = Sampler(ticker, Periods(100 * MS), handled.put, limit)
    sampler.start()
    assert {handled.get(timeout=60).period_ns for _ in range(15)} == {100 * MS}
    assert sampler.stop(60)
    assert changed == []
