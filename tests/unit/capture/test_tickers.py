"""Both tickers alike: a ring that loses the oldest, a run until the stop, and their choice."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from running_ticker import running

from splunk_profiler.capture.walker import Ticker, WalkerChoice, choose_walker, make_ticker

_NATIVE = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)
SECOND_NS = 1_000_000_000


def make(walker: str) -> Ticker:
    return make_ticker(WalkerChoice(walker, "asked for by the test"), None, lambda _: None, 64)


@pytest.fixture(params=[pytest.param("native", marks=_NATIVE), "portable"])
def ticker(request: pytest.FixtureRequest) -> Ticker:
    return make(request.param)


def test_full_ring_loses_the_oldest_and_a_later_snapshot_says_how_many(ticker: Ticker) -> None:
    for _ in range(262):
        ticker.capture()
    drained = ticker.drain(0)
    assert (len(drained), sum(raw.lost_count for raw in drained)) == (256, 6)
    assert ticker.counters().captured == 262
    assert [raw.time_ns for raw in drained] == sorted(raw.time_ns for raw in drained)
    ticker.capture()
    assert [raw.lost_count for raw in ticker.drain(0)] == [0]


def test_the_ticker_runs_until_it_is_stopped(ticker: Ticker) -> None:
    drained = 0
    with running(ticker, 1_000_000):
        while drained < 20:
            drained += len(ticker.drain(SECOND_NS))
    counters = ticker.counters()
    assert counters.captured >= 20
    assert counters.due == counters.captured + counters.missed
    while ticker.drain(SECOND_NS):
        pass  # a stopped ticker does not wait


class _Thing:
    """An object with weak references."""


@pytest.mark.usefixtures("no_collections")
def test_locals_of_sampled_functions_end_with_them_not_at_a_collection(ticker: Ticker) -> None:
    things: list[weakref.ref[_Thing]] = []
    ready, sampled = threading.Event(), threading.Event()

    def hold(call: Callable[[], object]) -> None:
        local = _Thing()
        things.append(weakref.ref(local))
        call()

    def wait() -> None:
        ready.set()
        sampled.wait()

    other = threading.Thread(target=hold, args=(wait,))
    other.start()
    ready.wait()
    hold(ticker.capture)
    sampled.set()
    other.join()
    assert [thing() for thing in things] == [None, None]


def test_a_walker_that_cannot_be_had_is_replaced_and_the_reason_given() -> None:
    chosen = choose_walker("portable")
    assert chosen == WalkerChoice("portable", "it was asked for")


def test_the_portable_walker_takes_no_snapshot_while_the_gil_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker = make("portable")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    ticker.capture()
    assert (ticker.drain(0), ticker.counters().missed) == ([], 1)
    assert choose_walker("portable").name == "none"
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True)
    ticker.capture()
    assert len(ticker.drain(0)) == 1
