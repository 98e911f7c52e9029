"""The loss of labels beyond the bounds, which never loses time or memory."""

from __future__ import annotations

import tracemalloc

from aggregator_feed import MAIN, MS, SECOND_NS, STACK, WORK, Feed, collection, labels, sample, seen, totals

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.pipeline.aggregator import estimate_size
from splunk_profiler.pipeline.pseudo_stacks import MERGED_STACK
from splunk_profiler.pipeline.window import Bounds
from splunk_profiler.samples import Snapshot


def test_bounds_drop_spans_then_threads_then_all_labels_and_never_a_sample() -> None:
    feed = Feed(bounds=Bounds(spans=3, threads=2, states=2, stacks=1))
    stacks = [Stack((Frame("shop", f"f{number}", "shop.py", 1),), truncated=False) for number in range(4)]
    for number, thread in enumerate((1, 1, 1, 1, 2, 3, 4, 5), 1):
        feed.tick(sample(seen(stacks[0], thread=thread), SpanRef(number, number, 1, number, "GET /")))
    feed.tick(sample(seen(stacks[1], thread=6)), sample(seen(stacks[2], thread=7)), sample(seen(stacks[3], thread=8)))
    profile = feed.profiles[-1] if feed.profiles else feed.close()
    keys = [{key for key in labels(one) if not key.startswith("source.event")} for one in profile.aggregates]
    of_threads = {"thread.id", "thread.os.id", "thread.name", "thread.state"}
    assert keys[:3] == [{*of_threads, "trace_id", "span_id", "local_root_span_id", "endpoint"}] * 3
    assert keys[3:5] == [{*of_threads, "endpoint"}] * 2
    assert keys[5:7] == [{"thread.state", "endpoint"}, {"thread.state"}]
    assert keys[7:] == [set(), set()]
    assert [one.count for one in profile.aggregates] == [1, 1, 1, 1, 1, 3, 1, 1, 1]
    assert profile.aggregates[-1].stack is MERGED_STACK
    assert profile.dropped_labels == 5 + 3
    assert totals(profile) == (11, 11_000, 110)


def test_sample_that_loses_its_span_has_the_last_name_of_its_endpoint() -> None:
    feed = Feed(bounds=Bounds(spans=1), names={1: "GET /", 2: "GET /cart", 3: "GET /cart"})
    for number in range(1, 5):
        feed.tick(sample(seen(), SpanRef(number, number, 1, number, "GET")))
    found = [(labels(one)["endpoint"], one.count) for one in feed.close().aggregates]
    assert found == [("GET /", 1), ("GET /cart", 2), ("GET", 1)]


def test_a_sample_that_loses_nothing_where_others_do_is_not_counted() -> None:
    feed = Feed(bounds=Bounds(spans=1))
    feed.tick(sample(seen(), SpanRef(1, 1, 1)), sample(seen(thread=2)))
    assert feed.close().dropped_labels == 0


def test_stacks_beyond_the_room_for_their_frames_are_merged() -> None:
    feed = Feed(bounds=Bounds(frames=5))
    deep = Stack((WORK,) * 4, truncated=False)
    feed.tick(sample(seen()), sample(seen(deep, thread=2)), sample(seen(thread=3)))
    profile = feed.close()
    assert [one.stack for one in profile.aggregates] == [STACK, STACK, MERGED_STACK]
    assert profile.dropped_labels == 1


def test_the_users_labels_go_with_the_thread_and_never_a_sample() -> None:
    feed = Feed(bounds=Bounds(spans=1, threads=1, states=1, stacks=1))
    for number in range(3):
        feed.tick(sample(seen(), SpanRef(number + 1, number + 1, 1), route="/", user=str(number)))
    profile = feed.close()
    kept = [{"route", "user", "thread.name", "span_id"} & labels(one).keys() for one in profile.aggregates]
    assert kept == [{"route", "user", "thread.name", "span_id"}, {"route", "user", "thread.name"}, set()]
    assert profile.dropped_labels == 2
    assert totals(profile) == (3, 3000, 30)


def test_12000_user_labels_take_bounded_memory_and_lose_no_time() -> None:
    feed = Feed()
    tracemalloc.start()
    try:
        for tick in range(120):
            feed.tick(*[sample(seen(), user=f"{tick}-{number}" * 10) for number in range(100)], after_ns=MS)
        profile = feed.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals(profile) == (12_000, 12_000_000, 120_000)
    assert profile.dropped_labels == 12_000 - 2048 - 512
    assert peak < 5 << 20


def test_collections_under_pressure_are_never_merged_with_timer_samples() -> None:
    feed = Feed(bounds=Bounds(spans=1, threads=1, states=1, stacks=1, frames=2))
    deep = Stack((WORK,) * 4, truncated=False)
    feed.tick(*[sample(seen(thread=number)) for number in range(4)])
    feed.tick(*[collection(number % 3, thread=number, stack=deep) for number in range(6)])
    feed.tick(sample(seen(deep)))
    profile = feed.close()
    merged = [one for one in profile.aggregates if one.stack is MERGED_STACK]
    assert [(one.kind, one.event_count, one.count) for one in merged] == [*[(GC_KIND, 2, 0)] * 3, (None, 0, 1)]
    assert [labels(one).get("gc.generation") for one in merged] == ["0", "1", "2", None]
    assert totals(profile) == (5, 5000, 50)


def test_a_thread_that_recurses_does_not_take_the_stacks_of_the_others() -> None:
    feed = Feed(bounds=Bounds(frames=20_000))
    for number in range(100):
        place = Frame("shop", "descend", "shop.py", number)
        deep = Stack((place, *[WORK] * 900), truncated=False)
        feed.tick(sample(seen(deep)), sample(seen(Stack((place, MAIN), truncated=False), thread=2)), after_ns=MS)
    profile = feed.close()
    assert totals(profile)[:2] == (200, 200_000)
    depths = [len(aggregate.stack.frames) for aggregate in profile.aggregates if aggregate.stack is not MERGED_STACK]
    assert depths.count(901) == 11  # in the half of the room that is open to all stacks
    assert depths.count(2) == 100
    cut = [aggregate for aggregate in profile.aggregates if len(aggregate.stack.frames) == 64]
    assert len(cut) > 20
    assert all(labels(aggregate)["thread.stack.truncated"] == "true" for aggregate in cut)


def test_6000_short_lived_threads_take_bounded_memory_and_lose_no_time() -> None:
    feed = Feed()
    tracemalloc.start()
    try:
        for tick in range(60):
            stacks = [Stack((WORK, MAIN) * 30, truncated=False) for _ in range(100)]
            coming = [sample(seen(stack, thread=100 * tick + number)) for number, stack in enumerate(stacks)]
            ended_threads = tuple(range(100 * (tick - 1), 100 * tick)) if tick else ()
            feed.now_ns += MS
            feed.aggregator.take(Snapshot(feed.now_ns, SECOND_NS, tuple(coming), ended_threads=ended_threads))
        profile = feed.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals(profile)[0] == 6_000
    assert peak < 5 << 20


def test_every_period_begins_with_all_the_room() -> None:
    feed = Feed(interval_s=1, bounds=Bounds(spans=1))
    for number in range(1, 4):
        feed.tick(sample(seen(), SpanRef(number, number, 1)))
    assert [profile.dropped_labels for profile in feed.profiles] == [0, 0, 0]


def test_ten_thousand_spans_a_second_take_bounded_memory_and_lose_no_time() -> None:
    feed = Feed()
    threads = [seen(Stack((WORK, MAIN) * 20, truncated=False), thread=number) for number in range(100)]
    tracemalloc.start()
    try:
        for tick in range(1, 121):  # one hundred threads each 10 ms for 1.2 s, a new span in each sample
            spans = (SpanRef(tick << 64 | number, tick << 20 | number, 1, number, "GET /") for number in range(1, 101))
            samples = [sample(thread, span) for thread, span in zip(threads, spans, strict=True)]
            feed.tick(*samples, after_ns=MS)
        profile = feed.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals(profile) == (12_000, 12_000_000, 120_000)
    assert len(profile.aggregates) <= sum((2048, 512, 512, 512))
    assert profile.dropped_labels == 12_000 - 2048
    assert peak < 5 << 20
    assert estimate_size(profile) < 8 << 20
