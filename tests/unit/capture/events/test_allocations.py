"""The hooks of the allocators and the samples that they take, in this process."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
from walker_factory import make

from splunk_profiler import _walker
from splunk_profiler.capture.events import make_sources
from splunk_profiler.capture.events.allocations import AllocationEventSource
from splunk_profiler.capture.portable import PortableTicker
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.config import Config
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawAllocation, RawBlocksEnded, RawEvent
from splunk_profiler.system.threads import active_threads

MAX_KEPT, MAX_LIVE = 1024, 8192
labels: ContextVar[object] = ContextVar("labels")
context: ContextVar[object] = ContextVar("context")


class Allocators(ctypes.Structure):
    """PyMemAllocatorEx."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


def allocators() -> list[list[int]]:
    """Return CPython's allocators of the raw, memory and object domains."""
    found = []
    for domain in range(3):
        one = Allocators()
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(one))
        found.append([getattr(one, field[0]) for field in one._fields_])
    return found


@dataclass
class Drained:
    """All that a ticker has said so far."""

    ticker: Any
    samples: list[RawAllocation] = field(default_factory=list)
    live: dict[int, RawAllocation] = field(default_factory=dict)

    def drain(self) -> None:
        samples, ended = self.ticker.drain_allocations()
        self.samples += samples
        self.live.update({each.live_id: each for each in samples if each.live_id})
        for live_id in ended:
            self.live.pop(live_id, None)

    def of(self, function: str) -> list[RawAllocation]:
        return [each for each in self.samples if function in each.thread.stack[0]]


@contextmanager
def sampling(sample_bytes: int, **arguments: Any) -> Iterator[Drained]:
    """Sample allocations during the block; nothing is left of it."""
    before = allocators()
    drained = Drained(make(**arguments))
    drained.ticker.start_allocations(sample_bytes, True)
    try:
        yield drained
    finally:
        drained.ticker.stop_allocations()
    drained.drain()
    assert allocators() == before


def make_bytes(sizes: list[int]) -> list[bytes]:
    """Make objects of these sizes, and nothing of a size that matters beside them."""
    return [bytes(size) for size in sizes]


def churn(sizes: list[int]) -> None:
    """Make objects of these sizes, and nothing beside them."""
    for size in sizes:
        bytes(size)


@pytest.mark.parametrize("seed", range(4))
def test_allocations_of_any_mix_of_sizes_add_up(seed: int) -> None:
    choose = random.Random(seed)
    bounds = [choose.choice([(30, 200), (300, 5_000), (5_000, 100_000), (30, 100_000)]) for _ in range(40)]
    rounds = [[choose.randint(*each) for _ in range(3_000_000 // each[1])] for each in bounds]
    with sampling(10_000) as drained:
        for sizes in rounds:
            churn(sizes)
            drained.drain()
    assert drained.ticker.counters().allocations_lost == 0
    found = drained.of("churn")
    wanted = [sys.getsizeof(b"") + size for sizes in rounds for size in sizes]
    assert sum(each.byte_count for each in found) == pytest.approx(sum(wanted), rel=0.06)


def test_samples_of_equal_sizes_tell_their_number_and_bytes_within_3_percent() -> None:
    sizes = [5_000] * 1_000
    with sampling(5_000) as drained:
        for _ in range(40):
            churn(sizes)
            drained.drain()
    found, size = drained.of("churn"), 5_000 + sys.getsizeof(b"")
    assert sum(each.byte_count for each in found) == pytest.approx(40_000 * size, rel=0.03)
    assert sum(each.object_count for each in found) == pytest.approx(40_000, rel=0.03)


def test_sample_has_the_thread_stack_context_and_labels_of_its_allocation() -> None:
    def work() -> None:
        context.set("span")
        labels.set("label")
        make_bytes([100_000])

    with sampling(1_000, context_var=context, labels_var=labels) as drained:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    samples = [each for each in drained.of("make_bytes") if each.byte_count > 90_000]
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
    kept: list[bytes] = []
    with sampling(10_000) as drained:
        for _ in range(20):
            made = make_bytes([2_000] * 500)
            kept += made[::5]
            del made
            drained.drain()
        drained.drain()
        in_use = sum(each.byte_count for each in drained.live.values() if "make_bytes" in each.thread.stack[0])
        wanted = sum(map(sys.getsizeof, kept))
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        drained.drain()
        left = [
            each for each in drained.live.values() if each.byte_count > 1_000 and "make_bytes" in each.thread.stack[0]
        ]
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
        (block,) = (each for each in drained.live.values() if each.byte_count > 1_000_000)
        assert block.byte_count == pytest.approx(sys.getsizeof(grown), rel=0.15)
        del grown[10:]
        drained.drain()
        assert not [each for each in drained.live.values() if each.byte_count > 1_000_000]


def test_full_log_gives_the_weight_of_lost_samples_to_the_next() -> None:
    with sampling(1_000) as drained:
        made = make_bytes([50_000] * (MAX_KEPT + 500))
        drained.drain()
        made += make_bytes([50_000])
    counters = drained.ticker.counters()
    assert counters.allocations_lost >= 500
    assert sum(each.lost_objects for each in drained.samples) >= counters.allocations_lost
    total = sum(each.byte_count + each.lost_bytes for each in drained.samples)
    assert total == pytest.approx((MAX_KEPT + 501) * 50_033, rel=0.05)


def test_full_map_loses_the_oldest_blocks_and_counts_them() -> None:
    kept = []
    with sampling(1_000) as drained:
        for _ in range(MAX_LIVE // 500 + 2):
            kept += make_bytes([20_000] * 500)
            drained.drain()
        assert drained.ticker.counters().live_evicted >= len(kept) - MAX_LIVE
        assert MAX_LIVE * 0.8 < len(drained.live) <= MAX_LIVE
        kept.clear()
        drained.drain()
        assert not [each for each in drained.live.values() if "make_bytes" in each.thread.stack[0]]


@pytest.mark.parametrize("is_first", [True, False])
def test_tracemalloc_and_the_hooks_do_not_disturb_each_other(is_first: bool) -> None:
    before = allocators()
    drained = Drained(make())
    if is_first:
        drained.ticker.start_allocations(1_000, True)
    tracemalloc.start()
    if not is_first:
        drained.ticker.start_allocations(1_000, True)
    made = make_bytes([50_000] * 20)
    assert tracemalloc.get_traced_memory()[0] > 1_000_000
    drained.drain()
    assert sum(each.byte_count for each in drained.of("make_bytes")) == pytest.approx(1_000_000, rel=0.1)
    drained.ticker.stop_allocations()
    assert tracemalloc.get_object_traceback(made[0]) is not None
    tracemalloc.stop()
    make_bytes([50_000])
    again = Drained(make())  # its hooks may be there already
    again.ticker.start_allocations(1_000, True)
    make_bytes([50_000] * 20)
    again.ticker.stop_allocations()
    again.drain()
    assert sum(each.byte_count for each in again.of("make_bytes")) == pytest.approx(1_000_000, rel=0.1)
    assert allocators() == before


def test_hooks_that_another_library_removed_are_back_after_a_drain() -> None:
    before = allocators()
    tracemalloc.start()
    drained = Drained(make())
    drained.ticker.start_allocations(1_000, True)
    tracemalloc.stop()
    assert allocators() == before
    drained.drain()
    make_bytes([50_000] * 20)
    drained.ticker.stop_allocations()
    drained.drain()
    assert sum(each.byte_count for each in drained.of("make_bytes")) == pytest.approx(1_000_000, rel=0.1)
    assert allocators() == before


def test_blocks_end_where_their_ends_may_have_been_missed() -> None:
    tracemalloc.start()
    drained = Drained(make())
    drained.ticker.start_allocations(1_000, True)
    kept = make_bytes([50_000] * 20)
    drained.drain()
    assert len(drained.live) >= 20
    tracemalloc.stop()  # and with it our hooks
    kept.clear()
    drained.drain()
    drained.ticker.stop_allocations()
    drained.drain()
    assert not [each for each in drained.live.values() if each.thread.stack[0][0] == "make_bytes"]


def test_hook_that_keeps_calls_from_ours_makes_no_circle() -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    before, ticker = allocators(), make()
    ticker.start_allocations(1_000, True)
    drain, fail_all, remove = ticker.drain_allocations, testing.set_nomemory, testing.remove_mem_hooks
    for _ in range(5):
        fail_all(0)
        try:  # noqa: SIM105  # nothing can be allocated here
            drain()
        except BaseException:  # noqa: S110
            pass
        remove()
        assert make_bytes([5_000])
    ticker.stop_allocations()
    assert allocators() == before


def test_profiler_threads_are_not_sampled() -> None:
    def work() -> None:
        _walker.mark_profiler_thread(True)
        make_bytes([50_000] * 20)
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
    assert max((each.byte_count for each in drained.samples), default=0) < 1 << 40


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
    assert sum(each.byte_count > 10_000 for each in other.drain_allocations()[0]) == 3


def test_source_turns_samples_into_events_and_ends() -> None:
    ticker: Any = _walker.Ticker(
        context_var=None, max_depth=10, make_frame=lambda *_: "", make_stack=Stack, ring_size=4, threads={}
    )
    source = AllocationEventSource(ticker, 1_000, tracks_live=True)
    source.start()
    made = make_bytes([50_000] * (MAX_KEPT + 10))
    events = source.drain()
    made += make_bytes([50_000])
    made.clear()
    later = source.drain()
    source.stretch(1e6)
    source.drain()
    make_bytes([500] * 1_000)
    assert len(source.drain()) < 100
    source.stop()
    assert all(isinstance(each, RawEvent) and each.event.kind.name == "allocation" for each in events)
    assert isinstance(later[-1], RawBlocksEnded)
    assert len(later[-1].live_ids) > MAX_KEPT // 2
    assert any(isinstance(each, RawEvent) and not each.live_id and each.event.count >= 10 for each in later)


def test_portable_walker_has_no_source_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    frames = Symbolizer()
    ticker = PortableTicker(
        context_of=lambda _: None, max_depth=10, make_frame=frames.frame, make_stack=Stack, ring_size=4
    )
    with caplog.at_level("WARNING", "splunk_profiler"):
        sources = make_sources(Config(enabled=True, memory_enabled=True), ticker, native=False)
    assert sources.drain() == []
    (line,) = caplog.messages
    assert "SPLUNK_PROFILER_MEMORY_ENABLED" in line
