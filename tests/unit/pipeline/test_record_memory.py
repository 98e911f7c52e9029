"""The estimated memory of queued samples, beside what they really take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from sample_factory import make_sample

from splunk_profiler.model import Stack
from splunk_profiler.pipeline.record_memory import SampleMemory
from splunk_profiler.samples import Sample

COUNT = 2000


def still(number: int, first: Sample) -> Sample:
    """Make a sample of a thread that has not moved; its numbers are new objects, as a reader makes them."""
    thread = first.thread._replace(cpu_ns=1_000_000 + number, start_ns=2_000_000 + number)
    return first._replace(time_ns=10**18 + number, instant_ns=10**17 + number, thread=thread)


def moved(number: int, first: Sample) -> Sample:
    """Make a sample of a thread with another stack, of frames that are known."""
    frames = first.thread.stack.frames
    return still(number, first)._replace(thread=first.thread._replace(stack=Stack(frames[number % 4 :], False)))


@pytest.mark.parametrize("make", [still, moved])
def test_estimated_memory_of_samples_is_about_the_real_one(make: Callable[[int, Sample], Sample]) -> None:
    first, memory = make_sample(frames=40), SampleMemory()
    held: list[tuple[Sample, int]] = []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held.extend((make(number, first), 3600 + number) for number in range(COUNT))
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    memory.add(sample for sample, _ in held)
    assert 0.7 * real < memory.used_bytes < 1.5 * real


def test_stack_counts_as_long_as_one_of_its_samples_is_held() -> None:
    memory, first = SampleMemory(), make_sample(frames=40)
    memory.add([first])
    alone = memory.used_bytes
    memory.add([still(2, first), still(3, first)])
    with_two_more = memory.used_bytes
    assert with_two_more < 2 * alone
    memory.remove([first])
    memory.remove([still(2, first)])
    assert memory.used_bytes == alone
    memory.remove([still(3, first)])
    assert memory.used_bytes == 0
