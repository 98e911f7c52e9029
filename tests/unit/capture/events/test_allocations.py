"""The samples of allocations that the hooks take, in this process."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
from sampled_allocations import churn, keep_a_fifth, make_bytes, sampling
from target_process import Target
from walker_factory import make

from splunk_profiler import _walker
from splunk_profiler.capture.events.allocations import AllocationEventSource, SampleDistance
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawEvent
from splunk_profiler.stream.records import FreedBlocksRecord
from splunk_profiler.system.threads import active_threads

MAX_KEPT, MAX_LIVE = 1024, 8192
labels: ContextVar[object] = ContextVar("labels")
context: ContextVar[object] = ContextVar("context")


@pytest.mark.parametrize("seed", range(4))
def test_allocations_of_any_mix_of_sizes_add_up(seed: int) -> None:
    choose = random.Random(seed)
    bounds = [choose.choice([(30, 200), (300, 5_000), (5_000, 100_000), (30, 100_000)]) for _ in range(400)]
    rounds = [[choose.randint(*each) for _ in range(800_000 // each[1])] for each in bounds]
    with sampling(2_000) as drained:
        for sizes in rounds:
            churn(sizes)
            drained.drain()
    assert drained.ticker.counters().allocations_lost == 0
    found = drained.of("churn")
    wanted = [sys.getsizeof(b"") + size for sizes in rounds for size in sizes]
    assert sum(each.event_amount for each in found) == pytest.approx(sum(wanted), rel=0.03)
    assert sum(each.event_count for each in found) == pytest.approx(len(wanted), rel=0.03)  # a deviation is 0.55 %


def test_samples_of_equal_sizes_tell_count_and_bytes_within_3_percent() -> None:
    sizes = [5_000] * 400
    with sampling(5_000) as drained:
        for _ in range(100):
            churn(sizes)
            drained.drain()
    found, size = drained.of("churn"), 5_000 + sys.getsizeof(b"")
    assert sum(each.event_amount for each in found) == pytest.approx(40_000 * size, rel=0.03)
    assert sum(each.event_count for each in found) == pytest.approx(40_000, rel=0.03)


def test_bytes_of_all_threads_add_up_while_the_mean_distance_changes() -> None:
    turn, rounds, sizes = threading.Barrier(9), 200, [500] * 80

    def work() -> None:
        for _ in range(rounds):
            turn.wait()
            churn(sizes)
            turn.wait()

    with sampling(2_000) as drained:
        threads = [threading.Thread(target=work, daemon=True) for _ in range(turn.parties - 1)]
        for each in threads:
            each.start()
        for number in range(rounds):
            drained.ticker.set_sample_bytes(2_000 + number % 2 * 200)
            turn.wait()
            turn.wait()
            drained.drain()
        for each in threads:
            each.join()
    wanted = len(threads) * rounds * sum(sys.getsizeof(b"") + size for size in sizes)
    assert sum(each.event_amount for each in drained.of("churn")) == pytest.approx(wanted, rel=0.03)


def test_sample_has_the_thread_stack_context_and_labels_of_its_allocation() -> None:
    def work() -> None:
        context.set("span")
        labels.set("label")
        make_bytes([100_000])

    with sampling(1_000, context_var=context, labels_var=labels) as drained:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    samples = [each for each in drained.of("make_bytes") if each.event_amount > 90_000]
    (seen,) = (each.thread for each in samples)
    assert (seen.context, seen.labels, seen.ident) == ("span", "label", thread.ident)
    assert [name for name in seen.stack[0] if name != "<listcomp>"][:3] == ["make_bytes", "work", "run"]


def test_sample_knows_the_thread_by_its_object() -> None:
    ticker = _walker.Ticker(
        context_var=None,
        max_depth=10,
        make_frame=lambda code, _offset, _globals: code.co_name,
        make_stack=lambda frames, _truncated: frames,
        ring_size=4,
        threads=active_threads(),
    )
    ticker.start_allocations(1_000)
    make_bytes([100_000])
    ticker.stop_allocations()
    samples, _ = ticker.drain_allocations()
    assert threading.current_thread() in {each.thread.python_thread for each in samples}


def test_blocks_in_use_are_those_that_were_not_freed() -> None:
    with sampling(10_000) as drained:
        kept = keep_a_fifth(drained, [2_000] * 500, 20)
        in_use = sum(each.event_amount for each in drained.in_use_of("make_bytes"))
        wanted = sum(map(sys.getsizeof, kept))
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        drained.drain()
        left = drained.in_use_of("make_bytes")
    assert in_use == pytest.approx(wanted, rel=0.25)
    assert left == []


def test_block_that_is_resized_counts_with_its_last_size() -> None:
    def grow() -> bytearray:
        grown = bytearray(1_000)
        for _ in range(200):
            grown += bytes(10_000)
        return grown

    with sampling(1_000) as drained:
        grown = grow()
        drained.drain()
        (block,) = (each for each in drained.live.values() if each.event_amount > 1_000_000)
        assert block.event_amount == pytest.approx(sys.getsizeof(grown), rel=0.15)
        del grown[10:]
        drained.drain()
        assert not [each for each in drained.live.values() if each.event_amount > 1_000_000]


def test_burst_without_a_drain_has_its_weight_at_its_place_and_in_the_heap() -> None:
    size, count = 500, 40_000  # the samples are 20 times as many as there is room for
    with sampling(1_000) as drained:
        made = make_bytes([size] * count)
        drained.drain()
        found, wanted = drained.of("make_bytes"), count * sys.getsizeof(made[0])
        in_use = [each for each in drained.live.values() if each in found]
    assert drained.ticker.counters().allocations_lost == 0
    assert len(found) < MAX_KEPT
    assert sum(each.event_amount for each in found) == pytest.approx(wanted, rel=0.5)  # a deviation of 10 %
    assert sum(each.event_amount for each in in_use) == pytest.approx(wanted, rel=0.5)  # a deviation of 10 %


def messages_of_drains(ticker: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    source = AllocationEventSource(ticker, 1, tracks_live=True)
    for _ in range(2):
        source.drain()
    return caplog.messages


def test_log_that_is_full_takes_no_more_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    with sampling(1) as drained:
        made = [bytes(1 << 22) for _ in range(1_100)]  # not written to
        del made
        drained.drain()  # which makes objects itself, for the next one
        kept_count = len(drained.samples)
    assert drained.ticker.counters().allocations_lost > 0
    assert kept_count <= MAX_KEPT
    (line,) = messages_of_drains(drained.ticker, caplog)
    assert line.startswith("allocations are missing")


def test_samples_of_one_place_are_added_up_once_their_blocks_have_ended() -> None:
    with sampling(100) as drained:
        churn([5_000] * 200)
        kept = make_bytes([5_000] * 30)
        drained.drain()
        assert len(drained.in_use_of("make_bytes")) >= 30
    found = drained.of("churn")
    assert len(found) < 20
    assert sum(each.event_amount for each in found) == pytest.approx(200 * sys.getsizeof(kept[0]), rel=0.01)


def test_full_map_loses_the_oldest_blocks_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[bytes] = []
    with sampling(1_000) as drained:
        for _ in range(MAX_LIVE // 500 + 2):
            kept += make_bytes([20_000] * 500)
            drained.drain()
        assert drained.ticker.counters().live_evicted >= len(kept) - MAX_LIVE
        assert MAX_LIVE * 0.8 < len(drained.live) <= MAX_LIVE
        kept.clear()
        drained.drain()
        assert not drained.in_use_of("make_bytes")
    assert "memory in use is missing" in messages_of_drains(drained.ticker, caplog)[-1]


def test_profiler_threads_are_not_sampled() -> None:
    def work() -> None:
        _walker.mark_profiler_thread(True)
        make_bytes([50_000] * 30)
        _walker.mark_profiler_thread(False)

    with sampling(1_000) as drained:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert drained.of("make_bytes") == []


def test_pending_exception_and_errno_are_as_before() -> None:
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.PyObject_Malloc.restype = ctypes.c_void_p
    libc.PyObject_Free.argtypes = [ctypes.c_void_p]

    def fail() -> None:
        try:
            raise KeyError(bytes(50_000))
        except KeyError as error:
            raise ValueError(bytes(50_000)) from error

    with sampling(1_000) as drained:
        for _ in range(50):
            with pytest.raises(ValueError, match="x00"):
                fail()
            ctypes.set_errno(77)
            block = libc.PyObject_Malloc(5_000)  # with this errno, which is read when it returns
            assert ctypes.get_errno() == 77
            libc.PyObject_Free(block)
    assert drained.samples


def test_snapshots_while_all_allocations_are_sampled_have_whole_stacks() -> None:
    def deep(depth: int, then: Callable[[], object]) -> object:
        return deep(depth - 1, then) if depth else then()

    with sampling(1) as drained:
        for _ in range(100):
            deep(20, drained.ticker.capture)
            (snapshot,) = drained.ticker.drain(0)
            (stack,) = {raw.stack for raw in snapshot.threads if raw.ident == threading.get_ident()}
            assert stack[0][:21] == ("deep",) * 21
            drained.drain()


def test_a_failing_allocation_is_no_sample() -> None:
    with sampling(1) as drained, pytest.raises(MemoryError):
        bytearray(1 << 62)
    assert max((each.event_amount for each in drained.samples), default=0) < 1 << 40


def test_wrong_arguments_are_refused() -> None:
    ticker = make()
    for wrong in (0, -1, 1 << 41, 1 << 80):
        with pytest.raises((ValueError, OverflowError)):
            ticker.start_allocations(wrong)
        with pytest.raises((ValueError, OverflowError)):
            ticker.set_sample_bytes(wrong)
    with pytest.raises(TypeError):
        ticker.start_allocations("many")  # type: ignore[arg-type]
    ticker.stop_allocations()
    assert ticker.drain_allocations() == ([], [])
    ticker.start_allocations(1_000)
    with pytest.raises(RuntimeError, match="once"):
        ticker.start_allocations(1_000)
    other = make()
    other.start_allocations(1_000)
    make_bytes([50_000] * 3)
    other.stop_allocations()
    assert sum(each.event_amount for each in other.drain_allocations()[0]) >= 150_000


def test_source_turns_samples_into_events_and_ends() -> None:
    ticker: Any = _walker.Ticker(
        context_var=None, max_depth=10, make_frame=lambda *_: "", make_stack=Stack, ring_size=4, threads={}
    )
    source = AllocationEventSource(ticker, 1_000, tracks_live=True)
    source.start()
    made = make_bytes([50_000] * 500)
    events = source.drain()
    del made
    later = source.drain()
    source.slow_down(1e6)
    source.slow_down(1e300)
    source.drain()
    make_bytes([500] * 1_000)
    assert len(source.drain()) < 100
    source.stop()
    assert all(isinstance(each, RawEvent) and each.event.kind.name == "allocation" for each in events)
    assert isinstance(later[-1], FreedBlocksRecord)
    assert len(later[-1].live_ids) > 400


def test_samples_become_no_more_frequent_where_much_is_allocated() -> None:
    distance, second_ns = SampleDistance(1 << 19, 0), 1_000_000_000
    assert not distance.update(300 << 20, second_ns - 1)
    assert distance.update(200 << 20, second_ns)
    assert (500 << 20) // distance.bytes == 100
    assert not distance.update(500 << 20, 2 * second_ns)
    lengths = []
    for number in range(3, 8):  # nothing is allocated any more
        distance.update(0, number * second_ns)
        lengths.append(distance.bytes / (1 << 19))
    assert lengths == [5, 2.5, 1.25, 1, 1]


def test_limit_and_rate_do_not_add_up_in_the_distance_of_samples() -> None:
    distance, second_ns = SampleDistance(1 << 19, 0), 1_000_000_000
    distance.limit_ratio = 8.0
    assert not distance.update(200 << 20, second_ns)
    assert distance.bytes == 8 << 19
    assert distance.update(800 << 20, 2 * second_ns)
    assert distance.bytes == 16 << 19
    distance.limit_ratio = 1.0
    assert distance.bytes == 16 << 19


def test_one_sample_of_a_large_distance_does_not_make_it_larger() -> None:
    distance = SampleDistance(1 << 30, 0)
    assert not distance.update(1 << 30, 1_000_000_000)
    assert distance.bytes == 1 << 30


def test_source_samples_less_often_where_much_is_allocated() -> None:
    now_ns = 0
    source = AllocationEventSource(make(), 10_000, tracks_live=True, monotonic_ns=lambda: now_ns)
    source.start()
    try:
        dense = [_samples(source, [50_000] * 400) for _ in range(30)]  # 600 MB in a second
        now_ns = 1_000_000_000
        source.drain()
        rare = _samples(source, [50_000] * 400)
    finally:
        source.stop()
    assert len(dense[0]) > 390
    assert len(rare) < 200
    assert sum(each.event.amount for each in rare) == pytest.approx(400 * 50_000, rel=0.35)  # a deviation is 7 %


def _samples(source: AllocationEventSource, sizes: list[int]) -> list[RawEvent]:
    made = make_bytes(sizes)  # equal samples whose blocks have ended are added up
    events = [each for each in source.drain() if isinstance(each, RawEvent)]
    del made
    return events


def test_time_in_captures_leaves_out_interruptions() -> None:
    with Target("allocation_ends.py", "stopped") as target:
        spent_ns, cpu_ns = map(int, target.line("spent").split())
        assert target.finish() == 0, target.output
    assert 0 < spent_ns < cpu_ns


def test_blocks_that_a_drain_itself_allocates_are_in_use_at_the_next() -> None:
    kept: list[bytes] = []

    class Freed:
        def __del__(self) -> None:
            kept.extend(bytes(200_000) for _ in range(50))

    with sampling(100_000) as drained:
        exec("ticker.capture()", {"ticker": drained.ticker, "freed": Freed()})  # noqa: S102  # globals that end
        gc.collect()
        drained.ticker.drain(0)
        drained.ticker.capture()
        drained.drain()  # frees that stack
        drained.drain()
    assert len(kept) == 50
    found = [each for each in drained.of("__del__") if each.event_amount >= 200_000]
    assert found
    assert all(each.live_id for each in found)
