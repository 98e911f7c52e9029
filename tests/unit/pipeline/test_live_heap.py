"""The live heap: which blocks are in use, their ages, and the profile that has them."""

from __future__ import annotations

import pytest

from splunk_profiler.model import DataType, Event, EventKind, Frame, Stack, ValueType
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.live_heap import HEAP_BEGINS, LIVE_HEAP, LiveHeap
from splunk_profiler.samples import Profile, Sample, Snapshot, Thread, ThreadSample

KIND = EventKind("allocation", ValueType("objects", "count"), ValueType("space", "bytes"), DataType.ALLOCATION)
MINUTE_NS, MAX_BLOCKS = 60_000_000_000, 16_384
STACK = Stack((Frame("shop", "fill", "shop.py", 7, 5),), truncated=False)


def sample(event: Event) -> Sample:
    thread = ThreadSample(Thread(1, "worker-1", 7, 8), STACK, 0, 0, 0, running=True, waiting_on="")
    return Sample(1, 1_000_000_000, thread, None, (), event)


def add(heap: LiveHeap, live_id: int, size: int = 100, instant_ns: int = 0) -> None:
    event = Event(KIND, (), 2, size)
    heap.add(live_id, sample(event), event, instant_ns)


def sizes(heap: LiveHeap) -> list[int]:
    return [each.event.amount for each in heap.take(0).samples if each.event is not None]


def test_blocks_that_have_ended_or_are_too_many_are_not_in_use(caplog: pytest.LogCaptureFixture) -> None:
    heap = LiveHeap()
    for live_id in (1, 2, 3):
        add(heap, live_id, live_id)
    heap.end([2, 99])
    assert sizes(heap) == [1, 3]
    for live_id in range(10, 10 + MAX_BLOCKS):
        add(heap, live_id, live_id)
    assert sizes(heap) == list(range(10, 10 + MAX_BLOCKS))
    assert len(caplog.messages) == 1
    heap.clear()
    assert sizes(heap) == []


@pytest.mark.parametrize(
    ("minutes", "age"),
    [(0, "<1m"), (1, "1m-10m"), (59, "10m-1h"), (60, "1h-6h"), (6 * 60, "6h-1d"), (10_000, ">1d")],
)
def test_block_has_its_age_and_the_weight_of_its_allocation(minutes: int, age: str) -> None:
    heap = LiveHeap()
    add(heap, 1, 100, 5)
    (found,) = heap.take(5 + minutes * MINUTE_NS).samples
    assert found.event == Event(LIVE_HEAP, (("heap.age", age),), 2, 100)
    assert found.thread.stack is STACK


def test_each_period_has_what_is_in_use_at_its_end() -> None:
    now_ns, heap, profiles = [0], LiveHeap(), list[Profile]()
    aggregator = Aggregator(
        profiles.extend,
        interval_ns=10,
        kinds=(KIND, LIVE_HEAP),
        monotonic_ns=lambda: now_ns[0],
        take_in_use=lambda: heap.take(now_ns[0]),
    )
    aggregator.begin(1_000, 1)
    add(heap, 1, 100)
    aggregator.take(Snapshot(1_000, 0, (sample(Event(KIND, (), 2, 100)),)))
    aggregator.flush_if_due(0)
    assert profiles == []
    for now_ns[0] in (10, 25):
        aggregator.flush_if_due(now_ns[0])
    heap.end([1])
    now_ns[0] = 40
    aggregator.flush_if_due(40)
    heap.clear()
    aggregator.close(())
    found = [
        {one.kind.name: one.event_amount for one in profile.aggregates if one.kind is not None} for profile in profiles
    ]
    assert found == [{"allocation": 100, "live heap": 100}, {"live heap": 100}, {}, {}]
    assert [(profile.time_ns, profile.duration_ns) for profile in profiles] == [
        *((1_000, 10), (1_010, 15)),
        *((1_025, 15), (1_040, 0)),
    ]
    begins = (HEAP_BEGINS,)
    assert [profile.comments for profile in profiles] == [begins, (), (), begins]
    assert {profile.kinds for profile in profiles} == {(KIND, LIVE_HEAP)}


def test_a_block_in_use_keeps_its_stack_in_a_full_profile() -> None:
    heap, profiles = LiveHeap(), list[Profile]()
    add(heap, 1, 100)
    aggregator = Aggregator(profiles.extend, interval_ns=10, take_in_use=lambda: heap.take(10))
    aggregator.begin(1_000, 1)
    for number in range(3_000):
        stack = Stack((Frame("made", f"up_{number}", "made.py", 1),), truncated=False)
        made = sample(Event(KIND, (), 1, 1))
        aggregator.take(Snapshot(1_000, 0, (made._replace(thread=made.thread._replace(stack=stack)),)))
    aggregator.close(())
    found = [one for profile in profiles for one in profile.aggregates if one.kind is LIVE_HEAP]
    assert {one.stack for one in found} == {STACK}
