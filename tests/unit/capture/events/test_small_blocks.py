"""Blocks of CPython's pools that are sampled: their ends come to the raw allocator."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
from sampled_allocations import Drained, churn, keep_a_fifth, sampling

from splunk_profiler.raw import RecordedEvent


def test_small_blocks_in_use_are_those_that_were_not_freed() -> None:
    with sampling(1_000) as drained:
        kept = keep_a_fifth(drained, [*range(1, 400)], 40)
        in_use = sum(each.event_amount for each in drained.in_use_of("make_bytes"))
        wanted = sum(map(sys.getsizeof, kept))
        kept.clear()
        drained.drain()
        left = drained.in_use_of("make_bytes")
    assert in_use == pytest.approx(wanted, rel=0.25)
    assert left == []


def test_small_blocks_that_were_resized_end_when_they_are_freed() -> None:
    python = ctypes.PyDLL(None)
    python.PyObject_Malloc.restype = python.PyObject_Realloc.restype = ctypes.c_void_p

    def resize_blocks() -> list[int]:
        blocks = [python.PyObject_Malloc(ctypes.c_size_t(16)) for _ in range(30)]
        return [python.PyObject_Realloc(ctypes.c_void_p(block), ctypes.c_size_t(300)) for block in blocks]

    def in_use(drained: Drained) -> list[RecordedEvent]:
        found = [each for each in drained.live.values() if "resize_blocks" in str(each.thread.stack)]
        return [each for each in found if each.event_amount >= 200 * each.event_count]  # not what Python itself keeps

    with sampling(1) as drained:
        blocks = resize_blocks()
        drained.drain()
        seen = len(in_use(drained))
        for block in blocks:
            python.PyObject_Free(ctypes.c_void_p(block))
        del blocks
        drained.drain()
    assert seen >= 20
    assert len(in_use(drained)) <= 5, "Python itself keeps a few that it has made meanwhile"


def test_threads_without_the_gil_free_raw_blocks_beside_followed_ones() -> None:
    python, over = ctypes.CDLL(None), threading.Event()  # its calls release the GIL
    python.PyMem_RawMalloc.restype, python.PyMem_RawFree.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def free_raw_blocks() -> None:
        while not over.is_set():
            for block in [python.PyMem_RawMalloc(ctypes.c_size_t(700)) for _ in range(50)]:
                python.PyMem_RawFree(block)

    threads = [threading.Thread(target=free_raw_blocks, daemon=True) for _ in range(3)]
    for each in threads:
        each.start()
    try:
        for _ in range(20):  # the hook comes and goes meanwhile
            with sampling(1_000) as drained:
                kept = keep_a_fifth(drained, [*range(1, 800)], 2)
                seen = len(drained.in_use_of("make_bytes"))
                kept.clear()
                drained.drain()
                left = drained.in_use_of("make_bytes")
            assert seen > 10
            assert left == []
    finally:
        over.set()
        for each in threads:
            each.join()


def test_python_counts_its_blocks_as_without_samples() -> None:
    gc.collect()
    before = sys.getallocatedblocks()
    with sampling(1) as drained:
        for _ in range(20):
            churn([*range(1, 400)])
            drained.drain()
        made = [[number] for number in range(2_000)]
        for grown in made:
            grown.extend(range(20))
        added = sys.getallocatedblocks() - before
    del made, grown
    drained.samples.clear()
    drained.live.clear()
    gc.collect()
    assert added > 2_000
    assert abs(sys.getallocatedblocks() - before) < 1_000
