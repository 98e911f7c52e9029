"""The sampling threads: only `stop` ends them, and every captured snapshot is handled."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from queue import SimpleQueue

import pytest

from splunk_profiler.capture.portable import PortableTicker
from splunk_profiler.capture.sampler import DrainPace, Sampler
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import Periods, RawSnapshot

PERIOD_NS = 2_000_000


def _ticker(make_stack: Callable[[tuple[Frame, ...], bool], Stack] = Stack) -> PortableTicker:
    return PortableTicker(
        context_of=lambda _: None,
        max_depth=64,
        make_frame=Symbolizer().frame,
        make_stack=make_stack,
        ring_size=64,
    )


def test_snapshots_are_handed_on_in_order_until_the_stop() -> None:
    handled: SimpleQueue[RawSnapshot] = SimpleQueue()
    ticker = _ticker()
    sampler = Sampler(ticker, Periods(PERIOD_NS), handled.put)
    sampler.start()
    times = [handled.get(timeout=60).time_ns for _ in range(20)]
    assert sampler.stop(60)
    assert times == sorted(times)
    assert ticker.counters().captured >= 20


def test_what_was_captured_before_the_stop_is_handled() -> None:
    handled: list[RawSnapshot] = []
    ticker = _ticker()
    for _ in range(5):
        ticker.capture()
    sampler = Sampler(ticker, Periods(3_600_000_000_000), handled.append)
    sampler.start()
    assert sampler.stop(60)
    assert len(handled) == 5


def test_a_handler_that_fails_is_logged_once_and_sampling_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: SimpleQueue[int] = SimpleQueue()

    def failing(_: RawSnapshot) -> None:
        calls.put(1)
        raise ValueError("mine")

    sampler = Sampler(_ticker(), Periods(PERIOD_NS), failing)
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        sampler.start()
        for _ in range(10):
            calls.get(timeout=60)
        assert sampler.stop(60)
    assert len([record for record in caplog.records if "the sampling thread" in record.getMessage()]) == 1


def test_a_walker_that_fails_at_one_tick_is_there_at_the_next(caplog: pytest.LogCaptureFixture) -> None:
    handled: SimpleQueue[RawSnapshot] = SimpleQueue()
    failures = iter([True, True, False])

    def failing_at_first(frames: tuple[Frame, ...], truncated: bool) -> Stack:
        if next(failures, False):
            raise MemoryError
        return Stack(frames, truncated)

    sampler = Sampler(_ticker(failing_at_first), Periods(PERIOD_NS), handled.put)
    sampler.start()
    for _ in range(5):
        handled.get(timeout=60)
    assert sampler.stop(60)
    assert "MemoryError" in caplog.text


def test_an_idle_service_is_drained_less_often_and_the_ring_keeps_room() -> None:
    second = 1_000_000_000
    pace = DrainPace(0, 0)
    used = iter([0.5, 0.019, 0.0, 0.021, 0.0])
    cpu_ns, intervals = 0, []
    for number, period_ns in enumerate([second, second, second // 1000, second, second // 10_000], 1):
        cpu_ns += int(next(used) * second)
        intervals.append(pace.interval_ns(number * second, cpu_ns, period_ns) / second)
    assert intervals == [0.05, 0.2, 0.064, 0.05, 0.05]


_PATCHED = """
from gevent import monkey
monkey.patch_all()
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.raw import STATE_RUNNING
ticker = make_ticker(choose_walker("portable"), None, lambda ident: None, 10)
ticker.capture()
(snapshot,) = ticker.drain(0)
states = {raw.ident: raw.state for raw in snapshot.threads}
assert states[monkey.get_original("_thread", "get_ident")()] == STATE_RUNNING, states
"""


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
def test_the_portable_walker_knows_the_capturing_thread_under_gevent() -> None:
    done = subprocess.run([sys.executable, "-c", _PATCHED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
