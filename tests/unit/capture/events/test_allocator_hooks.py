"""The hooks of the allocators beside others: of `tracemalloc`, of libraries, of other interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from c_library import compile_library

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
from allocators import allocators, set_allocator
from sampled_allocations import Drained, make_bytes, sampling
from target_process import Target
from walker_factory import make

from splunk_profiler.capture.events.allocations import AllocationEventSource

RAW, MEM, OBJECT = 0, 1, 2  # domains
FREE = 4  # in an allocator


@pytest.mark.parametrize("tracks_live", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_tracemalloc_and_the_hooks_do_not_disturb_each_other(is_first: bool, tracks_live: bool) -> None:
    before = allocators()
    drained = Drained(make())
    if is_first:
        drained.ticker.start_allocations(1_000, tracks_live)
    tracemalloc.start()
    if not is_first:
        drained.ticker.start_allocations(1_000, tracks_live)
    made = make_bytes([50_000] * 30)
    assert tracemalloc.get_traced_memory()[0] > 1_000_000
    drained.drain()
    assert sum(each.event_amount for each in drained.of("make_bytes")) == pytest.approx(1_500_000, rel=0.1)
    drained.ticker.stop_allocations()
    assert tracemalloc.get_object_traceback(made[0]) is not None
    tracemalloc.stop()
    make_bytes([50_000])
    again = Drained(make())  # its hooks may be there already
    again.ticker.start_allocations(1_000, tracks_live)
    make_bytes([50_000] * 30)
    again.ticker.stop_allocations()
    again.drain()
    assert sum(each.event_amount for each in again.of("make_bytes")) == pytest.approx(1_500_000, rel=0.1)
    assert allocators() == before


def test_frees_are_not_hooked_unless_blocks_in_use_are_followed() -> None:
    domains = [domain for domain in range(3) if domain == OBJECT or (domain == MEM and sys.version_info >= (3, 12))]
    before, ticker = allocators(), make()
    ticker.start_allocations(1_000)
    hooked = allocators()
    ticker.stop_allocations()
    assert allocators() == before
    with sampling(1_000):
        following = allocators()
    for domain, found in enumerate(before):
        is_hooked, has_context = domain in domains, bool(found[0])  # as those of a debug build have one
        assert hooked[domain][:4] != found[:4] if is_hooked else hooked[domain] == found
        assert (hooked[domain][FREE] != found[FREE]) == (is_hooked and has_context)
    raw_free_is_enough = following[RAW][FREE] != before[RAW][FREE]
    assert following[RAW][:FREE] == before[RAW][:FREE]
    assert raw_free_is_enough or before[OBJECT][0] or os.environ.get("PYTHONMALLOC")
    for domain in domains:
        is_free_hooked = following[domain][FREE] != before[domain][FREE]
        assert is_free_hooked == (not raw_free_is_enough or bool(before[domain][0]))


_SMALL = """
from allocators import allocators
from sampled_allocations import make_bytes, sampling
before = allocators()
with sampling(1) as drained:
    following = allocators()
    made = make_bytes([*range(1, 500)])
    drained.drain()
    seen = len(drained.in_use_of("make_bytes"))
    del made
    drained.drain()
    left = drained.in_use_of("make_bytes")
print(seen > 100, left, following[0] == before[0], following[2][4] != before[2][4])
"""


@pytest.mark.parametrize("allocator", ["malloc", "malloc_debug", "pymalloc_debug"])
def test_ends_of_small_blocks_are_seen_with_other_allocators_of_cpython(allocator: str) -> None:
    env = {**os.environ, "PYTHONMALLOC": allocator, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _SMALL], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True [] True True\n", "")


_WITH_HEADERS = """
import ctypes, sys
from sampled_allocations import Drained, make_bytes
from walker_factory import make
library, is_first = ctypes.PyDLL(sys.argv[1]), sys.argv[2] == "first"
def left(drained):
    return drained.in_use_of("make_bytes")
def follow(drained):
    made = make_bytes([*range(1, 500)])
    drained.drain()
    seen = len(left(drained)) > 20  # samples are fewer while many wait
    del made
    drained.drain()
    return seen, left(drained)
drained = Drained(make())
if is_first:
    library.add_headers(2)
drained.ticker.start_allocations(1, True)
print(follow(drained))
if not is_first:
    kept = make_bytes([*range(1, 500)])
    library.add_headers(2)
    drained.drain()
    del kept
    drained.drain()
    print(left(drained), follow(drained))
drained.ticker.stop_allocations()
"""


@pytest.mark.parametrize(("order", "expected"), [("first", "(True, [])\n"), ("later", "(True, [])\n[] (True, [])\n")])
def test_ends_are_seen_where_a_library_puts_headers_before_blocks(order: str, expected: str, tmp_path: Path) -> None:
    library = compile_library("block_headers.c", tmp_path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _WITH_HEADERS, str(library), order]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_hooks_see_frees_again_when_blocks_in_use_are_followed_later() -> None:
    before, first, drained = allocators(), make(), Drained(make())
    first.start_allocations(1_000)
    tracemalloc.start()
    first.stop_allocations()  # its hooks stay, as they are not on top
    drained.ticker.start_allocations(1_000, True)
    for is_traced in (True, False):
        if not is_traced:
            tracemalloc.stop()  # and with it the hooks above: the first ones are on top
        drained.drain()
        made = make_bytes([50_000] * 30)
        drained.drain()
        assert len(drained.live) >= 20
        del made
        drained.drain()
        assert not drained.in_use_of("make_bytes")
    drained.ticker.stop_allocations()
    assert allocators() == before


def assert_sampled_until_the_end(drained: Drained, before: list[list[int]]) -> None:
    """Allocate, and stop: all of it was sampled, and the allocators are those from before."""
    make_bytes([50_000] * 30)
    drained.ticker.stop_allocations()
    drained.drain()
    assert sum(each.event_amount for each in drained.of("make_bytes")) == pytest.approx(1_500_000, rel=0.1)
    assert allocators() == before


def test_hooks_that_another_library_removed_are_back_after_a_drain() -> None:
    before = allocators()
    tracemalloc.start()
    drained = Drained(make())
    drained.ticker.start_allocations(1_000, True)
    tracemalloc.stop()
    assert allocators() == before
    drained.drain()
    assert_sampled_until_the_end(drained, before)


def test_blocks_end_where_their_ends_may_have_been_missed(caplog: pytest.LogCaptureFixture) -> None:
    tracemalloc.start()
    drained = Drained(make())
    drained.ticker.start_allocations(1_000, True)
    kept = make_bytes([50_000] * 30)
    drained.drain()
    assert len(drained.live) >= 20
    assert drained.ticker.counters().live_forgotten == 0
    tracemalloc.stop()  # and with it our hooks
    del kept
    drained.drain()
    assert drained.ticker.counters().live_forgotten >= 20
    AllocationEventSource(drained.ticker, 1, tracks_live=True).drain()
    assert "another library has removed the hooks" in caplog.messages[-1]
    assert "start tracemalloc and the like after the profiler" in caplog.messages[-1]
    drained.ticker.stop_allocations()
    drained.drain()
    assert not drained.in_use_of("make_bytes")


def test_blocks_stay_followed_where_a_later_library_ends() -> None:
    drained = Drained(make())
    drained.ticker.start_allocations(1_000, True)
    tracemalloc.start()
    kept = make_bytes([50_000] * 30)
    tracemalloc.stop()
    drained.drain()
    assert len(drained.in_use_of("make_bytes")) >= 20
    del kept
    drained.drain()
    assert drained.ticker.counters().live_forgotten == 0
    drained.ticker.stop_allocations()
    assert not drained.in_use_of("make_bytes")


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


def test_hooks_that_another_library_brings_back_make_no_circle() -> None:
    before, drained = allocators(), Drained(make())
    tracemalloc.start()
    drained.ticker.start_allocations(1_000)
    saved = allocators()
    tracemalloc.stop()
    drained.drain()  # adds hooks again
    tracemalloc.start()
    for domain in (MEM, OBJECT):
        set_allocator(domain, saved[domain])  # the first hooks, above those of tracemalloc and the second ones
    drained.drain()
    tracemalloc.stop()
    drained.drain()
    assert_sampled_until_the_end(drained, before)


def test_numpy_arrays_are_seen_as_objects_without_their_data() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")

    def make_arrays() -> list[object]:
        return [numpy.ones(100_000) for _ in range(20)]

    starts = list(range(2_000))

    def make_views(array: Any) -> list[object]:
        views: list[object] = [None] * len(starts)  # a list that grows would be as much again
        for start in starts:
            views[start] = array[start:]
        return views

    with sampling(1_000) as drained:
        arrays = make_arrays()
        drained.drain()
        views = make_views(arrays[0])
    assert sum(each.event_amount for each in drained.of("make_arrays")) < 800_000  # 16 MB of data
    wanted = sum(map(sys.getsizeof, views))
    assert sum(each.event_amount for each in drained.of("make_views")) == pytest.approx(wanted, rel=0.5)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="interpreters with a GIL of their own came with CPython 3.12")
def test_allocations_under_other_gils_do_not_disturb_the_sums() -> None:
    with Target("allocation_ends.py", "own_gils") as target:
        counted, wanted = map(int, target.line("bytes").split())
        assert target.finish() == 0, target.output
    assert counted == pytest.approx(wanted, rel=0.03)


def test_hooks_that_cannot_be_added_again_are_said_once_in_the_log() -> None:
    with Target("allocation_ends.py", "refused") as target:
        said = target.line("log")
        assert said.count("allocations are not sampled any more") == said.count("memory in use is missing") == 1
        assert target.line("lines") == "2"
        target.line("over")
        assert target.finish() == 0, target.output
