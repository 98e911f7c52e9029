"""The native walker alone: the ring, the counters, the schedule, and object lifetimes."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")

from walker_factory import LONG_NS, Thing, Ticker, blocked_thread, current, make, recursion, running, thread_of

from splunk_profiler.raw import RawSnapshot


def test_a_snapshot_is_drained_once_and_in_the_order_of_capture() -> None:
    ticker = make()
    ticker.capture()
    ticker.capture()
    first, second = ticker.drain(0)
    assert first.time_ns <= second.time_ns
    assert (first.latency_ns, type(first).__name__) == (0, "RawSnapshot")
    assert ticker.drain(0) == []


def test_an_undrained_ring_takes_no_more_than_twice_its_size() -> None:
    ticker = make(ring_size=3)
    for _ in range(20):
        ticker.capture()
    counters = ticker.counters()
    assert (counters.captured, counters.missed) == (6, 14)
    assert [raw.lost_count for raw in ticker.drain(0)] == [3, 0, 0]
    ticker.capture()
    assert len(ticker.drain(0)) == 1


def test_a_thread_that_has_not_moved_has_the_same_stack_object_again() -> None:
    ticker = make()
    with blocked_thread(lambda wait: wait()) as thread:
        first, second = thread_of(ticker, thread).stack, thread_of(ticker, thread).stack
    assert first is second


def test_a_frame_is_named_once_however_often_it_is_seen() -> None:
    named: list[tuple[CodeType, int]] = []

    def make_frame(code: CodeType, offset: int, _globals: dict[str, Any]) -> str:
        named.append((code, offset))
        return code.co_name

    ticker = make(make_frame=make_frame)
    for _ in range(3):
        with blocked_thread(lambda wait: recursion(20, wait)) as thread:
            thread_of(ticker, thread)
    there = [key for key in named if key[0] is recursion.__code__]
    assert len(there) == len(set(there)) == 2


def test_code_run_with_other_globals_is_another_frame() -> None:
    seen: set[str] = set()

    def make_frame(code: CodeType, _offset: int, namespace: dict[str, Any]) -> str:
        if code is recursion.__code__:
            seen.add(namespace["__name__"])
        return code.co_name

    ticker = make(make_frame=make_frame)
    for module in ("one", "two"):
        other = FunctionType(recursion.__code__, {"__name__": module, "recursion": None})
        with blocked_thread(partial(other, 0)) as thread:
            thread_of(ticker, thread)
    assert seen == {"one", "two"}


@pytest.mark.parametrize("depth", [1, 2, 10])
def test_frames_beyond_the_depth_are_cut_at_the_root_and_marked(depth: int) -> None:
    with blocked_thread(lambda wait: recursion(50, wait)) as thread:
        whole, whole_truncated = thread_of(make(), thread).stack
        frames, truncated = thread_of(make(max_depth=depth), thread).stack
        exact, exact_truncated = thread_of(make(max_depth=len(whole)), thread).stack
    assert (frames, truncated) == (whole[:depth], True)
    assert (exact, exact_truncated, whole_truncated) == (whole, False, False)


def test_the_value_of_the_context_variable_is_that_of_the_thread() -> None:
    thing = Thing()

    def inside(wait: Callable[[], object]) -> None:
        others = [ContextVar[int](f"other {i}") for i in range(200)]  # the lookup passes these
        for other in others:
            other.set(1)
        current.set(thing)
        wait()

    with blocked_thread(inside) as thread:
        assert thread_of(make(), thread).context is thing
        assert thread_of(make(context_var=None), thread).context is None
        ticker = make(context_var=ContextVar("never set"))
        assert thread_of(ticker, thread).context is None


def test_a_thread_at_its_recursion_limit_keeps_its_context() -> None:
    thing, ticker = Thing(), make(ring_size=2 * sys.getrecursionlimit(), max_depth=1)

    def deeper() -> None:
        ticker.capture()
        deeper()

    def inside() -> None:
        for i in range(100):
            ContextVar[int](f"other {i}").set(i)
        current.set(thing)
        with pytest.raises(RecursionError):
            deeper()

    thread = threading.Thread(target=inside)
    thread.start()
    ident = thread.ident
    thread.join()
    seen = [raw.context for snapshot in ticker.drain(0) for raw in snapshot.threads if raw.ident == ident]
    assert len(seen) > sys.getrecursionlimit() // 2
    assert set(seen) == {thing}


def test_keys_are_not_used_again_and_the_oldest_thread_comes_first() -> None:
    ticker = make()
    keys = []
    for _ in range(3):
        with blocked_thread(lambda wait: wait()) as thread:
            keys.append(thread_of(ticker, thread).key)
            ticker.capture()
            (snapshot,) = ticker.drain(0)
        assert [raw.key for raw in snapshot.threads] == sorted({raw.key for raw in snapshot.threads})
    assert keys == sorted(set(keys))


def test_a_thread_has_its_native_id_where_cpython_knows_it() -> None:
    with blocked_thread(lambda wait: wait()) as thread:
        assert thread_of(make(), thread).native_id == (thread.native_id if sys.version_info >= (3, 11) else 0)


def test_every_deadline_is_captured_or_counted_as_missed() -> None:
    ticker = make(ring_size=64)
    with running(ticker, 1_000_000):
        drained: list[RawSnapshot] = []
        while len(drained) < 50:
            snapshots = ticker.drain(LONG_NS)
            assert snapshots
            drained += snapshots
    counters = ticker.counters()
    drained += ticker.drain(0)
    assert counters.due == counters.captured + counters.missed
    assert counters.captured == len(drained) + sum(raw.lost_count for raw in drained)
    assert all(raw.latency_ns > 0 for raw in drained)
    assert counters.gil_held_ns_sum > 0


ANY_THREAD_RUNS_CALLS = sys.version_info >= (3, 12)  # else the ticker pauses Python for each snapshot


def test_samples_beside_a_busy_thread_are_taken_by_it_or_the_ticker() -> None:
    ticker, enough = make(ring_size=64), threading.Event()

    def busy() -> None:
        while not enough.is_set():
            sum(range(100))
            counters = ticker.counters()
            if (counters.by_pending_call if ANY_THREAD_RUNS_CALLS else counters.captured) >= 20:
                enough.set()

    with running(ticker, 5_000_000):
        worker = threading.Thread(target=lambda: [ticker.drain(10_000_000) for _ in iter(enough.is_set, True)])
        other = threading.Thread(target=busy)
        worker.start()
        other.start()
        other.join()
        worker.join()
    assert (ticker.counters().by_pending_call > 0) == ANY_THREAD_RUNS_CALLS


@pytest.fixture
def no_switches() -> Iterator[None]:
    """Let no thread that waits for the GIL ask for it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("no_switches")
def test_samples_beside_busy_threads_wait_for_no_switch_of_threads() -> None:
    ticker = make(ring_size=64)

    def busy() -> None:
        while ticker.counters().captured < 20:
            sum(range(100))

    with running(ticker, 10_000_000):
        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("no_switches")
def test_sample_due_in_c_code_with_the_gil_shows_the_caller_of_it() -> None:
    ticker, keep_gil = make(ring_size=64), ctypes.PyDLL(None).usleep
    callers: list[str] = []

    def call_keeping_gil() -> None:
        keep_gil(30_000)

    def top_frames() -> list[str]:
        drained = [thread for snapshot in ticker.drain(0) for thread in snapshot.threads]
        return [thread.stack[0][0] for thread in drained if thread.ident == threading.get_ident()]

    with running(ticker, 20_000_000):
        while callers.count("call_keeping_gil") < 5:
            call_keeping_gil()
            callers += top_frames()
    assert callers.count("call_keeping_gil") > len(callers) / 2


def test_wait_for_the_gil_counts_from_the_first_deadline_in_it() -> None:
    ticker, keep_gil = make(ring_size=64), ctypes.PyDLL(None).usleep
    with running(ticker, 10_000_000):
        assert ticker.drain(LONG_NS)
        keep_gil(200_000)  # no deadline is served meanwhile
        kept_ns, snapshots = time.time_ns(), ticker.drain(LONG_NS)
        while snapshots[-1].time_ns < kept_ns:  # the first ones may have come before
            snapshots += ticker.drain(LONG_NS)
    waits = [snapshot.gil_wait_ns for snapshot in snapshots]
    assert 150_000_000 < max(waits) < LONG_NS
    ticker.capture()
    assert [snapshot.gil_wait_ns for snapshot in ticker.drain(0)][-1] == 0, "nothing was due"


def test_the_ticker_takes_the_sample_itself_if_no_thread_runs_python() -> None:
    ticker = make(ring_size=64)
    with running(ticker, 5_000_000):
        while True:
            assert ticker.drain(LONG_NS)
            counters = ticker.counters()
            if counters.captured - counters.by_pending_call >= 5:
                break


def test_stop_ends_run_and_drain_for_good() -> None:
    ticker, drained = make(), threading.Event()

    def drain() -> None:
        ticker.drain(LONG_NS)
        drained.set()

    waiting = threading.Thread(target=drain)
    waiting.start()
    ticker.stop()
    ticker.stop()
    waiting.join()
    assert drained.is_set()
    ticker.run(1)
    assert ticker.drain(LONG_NS) == []


def test_a_ticker_runs_in_one_thread() -> None:
    ticker = make()
    with running(ticker, 1_000_000):
        ticker.drain(LONG_NS)
        with pytest.raises(RuntimeError, match="running already"):
            ticker.run(1_000_000)


def test_nothing_of_a_thread_that_has_ended_is_kept_alive() -> None:
    ticker = make()
    namespace: dict[str, Any] = {}
    exec("def once(wait):\n    wait()\n", namespace)  # noqa: S102

    def inside(wait: Callable[[], object]) -> None:
        current.set(Thing())
        namespace["once"](wait)

    with blocked_thread(inside) as thread:
        context = weakref.ref(thread_of(ticker, thread).context)
    code = weakref.ref(namespace.pop("once").__code__)
    del thread  # since 3.14 a Thread keeps its context
    ticker.capture()
    ticker.drain(0)
    gc.collect()
    assert context() is None
    assert code() is None


def test_a_ticker_in_a_cycle_is_collected_with_all_that_it_holds() -> None:
    def cycle() -> weakref.ref[Thing]:
        holder: list[object] = [thing := Thing()]
        ticker = make(make_stack=lambda *of_stack: (of_stack, holder), ring_size=1)
        holder.append(ticker)
        current.set(holder)
        ticker.capture()
        holder.extend(ticker.drain(0))
        for _ in range(2):
            ticker.capture()
        current.set(None)
        return weakref.ref(thing)

    alive = cycle()
    gc.collect()
    assert alive() is None


def run_once(ticker: Ticker, function: str = "work") -> tuple[weakref.ref[Thing], weakref.ref[CodeType]]:
    """Capture in code that is made for one call; return references to what its globals hold and to the code."""
    namespace: dict[str, Any] = {"__name__": "generated", "thing": Thing(), "capture": ticker.capture}
    exec(f"def {function}():\n    capture()\n{function}()", namespace)  # noqa: S102  # generated code is the subject
    return weakref.ref(namespace["thing"]), weakref.ref(namespace[function].__code__)


def test_the_globals_of_code_that_was_run_once_end_when_it_is_converted() -> None:
    ticker = make()
    thing, _ = run_once(ticker)
    gc.collect()
    assert thing() is not None
    list(ticker.drain(0)[0].threads)
    gc.collect()
    assert thing() is None


def test_globals_of_a_snapshot_that_nobody_reads_end_at_the_next_one() -> None:
    ticker = make()
    thing, _ = run_once(ticker)
    ticker.drain(0)
    ticker.capture()
    ticker.drain(0)
    gc.collect()
    assert thing() is None


def test_code_made_for_one_call_is_named_right_and_not_kept() -> None:
    ticker = make()
    codes = []
    for number in range(500):  # often at the address of an earlier one
        _, code = run_once(ticker, f"work_{number}")
        (snapshot,) = ticker.drain(0)
        assert any(f"work_{number}" in thread.stack[0] for thread in snapshot.threads)
        codes.append(code)
    del snapshot
    ticker.capture()
    ticker.drain(0)
    gc.collect()
    assert [code() for code in codes] == [None] * 500
