"""The rules of aggregation, the end of a profile, and the loss of labels beyond the bounds."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from splunk_profiler.capture.events.collector import GC_KIND
from splunk_profiler.model import (
    Aggregate,
    Event,
    Frame,
    InstrumentationSource,
    Profile,
    Sample,
    Snapshot,
    SpanRef,
    Stack,
    Thread,
    ThreadSample,
    UnattributedReason,
    UnattributedTime,
)
from splunk_profiler.pipeline.aggregator import Aggregator, estimate_size
from splunk_profiler.pipeline.pseudo_stacks import MERGED_STACK, UNATTRIBUTED_STACKS
from splunk_profiler.pipeline.window import Bounds

SECOND_NS = 1_000_000_000
MS = 1_000_000
WORK, MAIN = Frame("shop", "work", "shop.py", 7, 5), Frame("shop", "main", "shop.py", 2, 1)
STACK = Stack((WORK, MAIN), truncated=False)


def seen(
    stack: Stack = STACK, *, thread: int = 1, running: bool = True, wall_ms: int = 1000, cpu_ms: int = 10
) -> ThreadSample:
    named = Thread(thread, f"worker-{thread}", 0x7000 + thread, 100 + thread)
    return ThreadSample(named, stack, 0, 0, 0, running, "", wall_ms * MS, cpu_ms * MS)


def sample(thread: ThreadSample, span: SpanRef | None = None, time_ns: int = 0, **user_labels: str) -> Sample:
    return Sample(time_ns, SECOND_NS, thread, span, tuple(user_labels.items()))


def collection(generation: int = 0, *, count: int = 1, ms: int = 2, thread: int = 1, stack: Stack = STACK) -> Sample:
    event = Event(GC_KIND, (("gc.generation", str(generation)),), count, ms * MS)
    return replace(sample(seen(stack, thread=thread, wall_ms=0, cpu_ms=0)), event=event)


class Feed:
    """An aggregator with its clock and the profiles that it has delivered."""

    def __init__(
        self,
        *,
        interval_s: int = 10,
        bounds: Bounds | None = None,
        names: dict[int, str] | None = None,
        source: InstrumentationSource = InstrumentationSource.CONTINUOUS,
    ) -> None:
        self.now_ns = 50 * SECOND_NS
        self.profiles: list[Profile] = []
        known = names or {}
        self.aggregator = Aggregator(
            self.profiles.extend,
            interval_ns=interval_s * SECOND_NS,
            endpoint_of=lambda root: known.get(root, ""),
            bounds=bounds or Bounds(),
            monotonic_ns=lambda: self.now_ns,
            source=source,
        )

    def tick(
        self, *samples: Sample, unattributed: tuple[UnattributedTime, ...] = (), after_ns: int = SECOND_NS
    ) -> None:
        self.now_ns += after_ns
        timed = tuple(replace(taken, time_ns=self.now_ns) for taken in samples)
        self.aggregator.take(Snapshot(self.now_ns, SECOND_NS, timed, unattributed))

    def close(self, *unattributed: UnattributedTime) -> Profile:
        self.aggregator.close(unattributed)
        return self.profiles[-1]


def labels(aggregate: Aggregate) -> dict[str, str | int]:
    assert len(dict(aggregate.labels)) == len(aggregate.labels)
    return dict(aggregate.labels)


def totals(*profiles: Profile) -> tuple[int, int, int]:
    """Return samples, wall and CPU time of all aggregates, times in milliseconds."""
    found = [aggregate for profile in profiles for aggregate in profile.aggregates]
    return (
        sum(aggregate.count for aggregate in found),
        sum(aggregate.wall_ns for aggregate in found) // MS,
        sum(aggregate.cpu_ns for aggregate in found) // MS,
    )


def test_samples_of_one_thread_in_one_place_are_one_aggregate_whose_time_is_that_of_the_first() -> None:
    feed = Feed()
    for _ in range(3):
        feed.tick(sample(seen()))
    (aggregate,) = feed.close().aggregates
    assert (aggregate.count, aggregate.wall_ns, aggregate.cpu_ns) == (3, 3 * SECOND_NS, 30 * MS)
    assert aggregate.stack is STACK
    assert aggregate.labels == (
        ("source.event.time", 51_000),
        ("source.event.period", 1000),
        ("source.event.name", "timer"),
        ("thread.id", 0x7001),
        ("thread.os.id", 101),
        ("thread.name", "worker-1"),
        ("thread.state", "RUNNABLE"),
    )


def test_two_stacks_of_the_same_frames_are_one() -> None:
    feed = Feed()
    for stack in (STACK, Stack((WORK, MAIN), truncated=False), STACK):
        feed.tick(sample(seen(stack)))
    assert [aggregate.count for aggregate in feed.close().aggregates] == [3]


@pytest.mark.parametrize(
    "other",
    [
        sample(seen(Stack((MAIN,), truncated=False))),
        sample(seen(Stack((WORK, MAIN), truncated=True))),
        sample(seen(thread=2)),
        sample(seen(running=False)),
        sample(seen(), SpanRef(1, 2, 1)),
    ],
)
def test_samples_that_differ_in_stack_or_labels_are_kept_apart(other: Sample) -> None:
    feed = Feed()
    feed.tick(sample(seen()), other)
    assert [aggregate.count for aggregate in feed.close().aggregates] == [1, 1]


def test_a_sample_in_a_span_has_its_ids_its_local_root_and_the_name_that_one_has_at_the_end() -> None:
    feed = Feed(names={3: "GET /cart/{id}"})
    feed.tick(sample(seen(), SpanRef(1, 2, 1, 3, "GET")))
    (aggregate,) = feed.close().aggregates
    found = labels(aggregate)
    assert found["trace_id"] == f"{1:032x}"
    assert found["span_id"] == f"{2:016x}"
    assert found["local_root_span_id"] == f"{3:016x}"
    assert found["endpoint"] == "GET /cart/{id}"
    assert "trace_flags" not in found


def test_a_root_that_is_forgotten_has_the_name_it_had_at_the_first_sample() -> None:
    feed = Feed()
    feed.tick(sample(seen(), SpanRef(1, 2, 1, 3, "GET")))
    feed.tick(sample(seen(), SpanRef(1, 2, 1, 3, "GET")))
    (aggregate,) = feed.close().aggregates
    assert labels(aggregate)["endpoint"] == "GET"


def test_a_span_that_is_not_sampled_says_so_and_an_unknown_root_is_left_out() -> None:
    feed = Feed()
    feed.tick(sample(seen(), SpanRef(1, 2, 0)))
    (aggregate,) = feed.close().aggregates
    assert labels(aggregate)["trace_flags"] == "00"
    assert not {"local_root_span_id", "endpoint"} & labels(aggregate).keys()


def test_a_truncated_stack_is_labelled() -> None:
    feed = Feed()
    feed.tick(sample(seen(Stack((WORK,), truncated=True))))
    assert labels(feed.close().aggregates[0])["thread.stack.truncated"] == "true"


def test_a_profile_goes_at_the_snapshot_nearest_to_the_end_of_the_interval() -> None:
    feed = Feed(interval_s=10)
    for _ in range(25):
        feed.tick(sample(seen()), after_ns=SECOND_NS - MS)  # each a little early
    assert [profile.aggregates[0].count for profile in feed.profiles] == [10, 10]
    first, second = feed.profiles
    assert second.time_ns == first.time_ns + first.duration_ns
    assert second.duration_ns == 10 * (SECOND_NS - MS)
    assert second.period_ns == SECOND_NS


def test_samples_of_snapshots_that_came_to_be_further_apart_say_their_distance_on_the_average() -> None:
    feed = Feed()
    for period_ns in (SECOND_NS, 3 * SECOND_NS):
        feed.tick(replace(sample(seen()), period_ns=period_ns))
    assert labels(feed.close().aggregates[0])["source.event.period"] == 2000


def test_snapshots_further_apart_than_the_interval_are_a_profile_each() -> None:
    feed = Feed(interval_s=1)
    for _ in range(3):
        feed.tick(sample(seen()), after_ns=60 * SECOND_NS)
    assert [profile.aggregates[0].count for profile in feed.profiles] == [1, 1, 1]


def test_what_came_before_a_pause_goes_when_its_time_has_come_and_not_with_what_follows() -> None:
    feed = Feed(interval_s=10, source=InstrumentationSource.SNAPSHOT)
    feed.tick(sample(seen()))
    feed.now_ns += 5 * SECOND_NS
    feed.aggregator.flush_if_due()
    assert not feed.profiles
    feed.now_ns += 5 * SECOND_NS
    feed.aggregator.flush_if_due()
    (profile,) = feed.profiles
    assert (profile.source, profile.duration_ns) == (InstrumentationSource.SNAPSHOT, SECOND_NS)
    feed.now_ns += 500 * SECOND_NS
    feed.aggregator.flush_if_due()
    assert len(feed.profiles) == 1
    feed.tick(sample(seen()))
    later = feed.close()
    assert later.duration_ns == SECOND_NS


def test_what_is_in_no_sample_is_in_the_profile_as_well() -> None:
    feed = Feed()
    feed.tick(sample(seen()), unattributed=(UnattributedTime(UnattributedReason.INTERNAL, 0, 2 * MS),))
    feed.tick(sample(seen()), unattributed=(UnattributedTime(UnattributedReason.INTERNAL, 0, 3 * MS),))
    profile = feed.close(UnattributedTime(UnattributedReason.UNSAMPLED, 400 * MS, 1 * MS))
    by_stack = {aggregate.stack: aggregate for aggregate in profile.aggregates}
    internal, unsampled = (
        by_stack[UNATTRIBUTED_STACKS[UnattributedReason.INTERNAL]],
        by_stack[UNATTRIBUTED_STACKS[UnattributedReason.UNSAMPLED]],
    )
    assert (internal.count, internal.wall_ns, internal.cpu_ns) == (0, 0, 5 * MS)
    assert (unsampled.count, unsampled.wall_ns, unsampled.cpu_ns) == (0, 400 * MS, 1 * MS)
    assert labels(unsampled)["source.event.time"] == profile.time_ns // MS
    assert totals(profile) == (2, 2400, 26)


def test_a_process_that_ends_before_the_first_snapshot_sends_nothing() -> None:
    feed = Feed()
    feed.aggregator.close((UnattributedTime(UnattributedReason.UNSAMPLED, 400 * MS, 1 * MS),))
    assert feed.profiles == []


def test_spans_go_first_then_threads_then_all_but_the_stack_and_never_a_sample() -> None:
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


def test_samples_with_other_labels_of_the_users_are_others_and_carry_them_last() -> None:
    feed = Feed()
    feed.tick(sample(seen(), route="/a"), sample(seen(), route="/b"), sample(seen(), route="/a"), sample(seen()))
    found = feed.close().aggregates
    assert [(labels(one).get("route"), one.count) for one in found] == [("/a", 2), ("/b", 1), (None, 1)]
    assert found[0].labels[-1] == ("route", "/a")


def test_the_users_labels_go_with_the_thread_and_never_a_sample() -> None:
    feed = Feed(bounds=Bounds(spans=1, threads=1, states=1, stacks=1))
    for number in range(3):
        feed.tick(sample(seen(), SpanRef(number + 1, number + 1, 1), route="/", user=str(number)))
    profile = feed.close()
    kept = [{"route", "user", "thread.name", "span_id"} & labels(one).keys() for one in profile.aggregates]
    assert kept == [{"route", "user", "thread.name", "span_id"}, {"route", "user", "thread.name"}, set()]
    assert profile.dropped_labels == 2
    assert totals(profile) == (3, 3000, 30)


def test_thirty_thousand_different_labels_of_the_users_take_bounded_memory_and_lose_no_time() -> None:
    feed = Feed()
    tracemalloc.start()
    try:
        for tick in range(300):
            feed.tick(*[sample(seen(), user=f"{tick}-{number}" * 10) for number in range(100)], after_ns=MS)
        profile = feed.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals(profile) == (30_000, 30_000_000, 300_000)
    assert profile.dropped_labels == 30_000 - 2048 - 512
    assert peak < 8 << 20


def test_collections_are_counted_with_what_they_took_and_as_no_samples() -> None:
    feed = Feed()
    feed.tick(sample(seen()), collection(), collection(count=5, ms=10), collection(2, ms=40))
    profile = feed.close()
    timer, young, full = profile.aggregates
    assert totals(profile) == (1, 1000, 10)
    assert (timer.kind, timer.event_count, timer.event_amount) == (None, 0, 0)
    assert (young.kind, young.event_count, young.event_amount) == (GC_KIND, 6, 12 * MS)
    assert (full.kind, full.event_count, full.event_amount) == (GC_KIND, 1, 40 * MS)
    assert labels(young) == {
        "source.event.time": 51_000,
        "source.event.name": "gc",
        "gc.generation": "0",
        "thread.id": 0x7001,
        "thread.os.id": 101,
        "thread.name": "worker-1",
        "thread.state": "RUNNABLE",
    }


def test_under_pressure_collections_lose_their_labels_but_are_never_merged_with_samples_of_the_timer() -> None:
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


def test_fifteen_thousand_threads_that_come_and_go_take_bounded_memory_and_lose_no_time() -> None:
    feed = Feed()
    tracemalloc.start()
    try:
        for tick in range(150):
            stacks = [Stack((WORK, MAIN) * 30, truncated=False) for _ in range(100)]
            coming = [sample(seen(stack, thread=100 * tick + number)) for number, stack in enumerate(stacks)]
            ended_threads = tuple(range(100 * (tick - 1), 100 * tick)) if tick else ()
            feed.now_ns += MS
            feed.aggregator.take(Snapshot(feed.now_ns, SECOND_NS, tuple(coming), ended_threads=ended_threads))
        profile = feed.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals(profile)[0] == 15_000
    assert peak < 8 << 20


def test_a_profile_begins_with_the_snapshot_that_others_are_compared_with() -> None:
    feed = Feed()
    feed.aggregator.begin(feed.now_ns, SECOND_NS)
    begun_ns = feed.now_ns
    feed.tick(sample(seen()), after_ns=300 * MS)
    profile = feed.close()
    assert (profile.time_ns, profile.duration_ns) == (begun_ns, 300 * MS)


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_that_is_set_makes_a_profile_neither_longer_nor_shorter(step_s: int) -> None:
    feed = Feed()
    for second in range(1, 12):
        feed.now_ns += SECOND_NS
        time_ns = feed.now_ns + (step_s * SECOND_NS if second > 5 else 0)
        feed.aggregator.take(Snapshot(time_ns, SECOND_NS, (sample(seen(), time_ns=time_ns),)))
    (profile,) = feed.profiles
    assert profile.duration_ns == 10 * SECOND_NS


def test_events_between_two_snapshots_are_samples_of_no_period() -> None:
    feed = Feed()
    feed.tick(sample(seen()))
    feed.aggregator.take(Snapshot(feed.now_ns, 0, (collection(),)))
    feed.tick(sample(seen()))
    profile = feed.close()
    assert profile.period_ns == SECOND_NS
    assert totals(profile) == (2, 2000, 20)
    assert [aggregate.event_count for aggregate in profile.aggregates] == [0, 1]


def test_a_period_that_begins_with_events_has_the_distance_of_the_snapshots_before() -> None:
    feed = Feed(interval_s=2)
    feed.tick(sample(seen()))
    feed.now_ns += SECOND_NS
    feed.aggregator.take(Snapshot(feed.now_ns, 0, (collection(),)))  # ends the first period
    assert len(feed.profiles) == 1
    (flush_if_due,) = feed.close(UnattributedTime(UnattributedReason.UNSAMPLED, 1 * MS, 1 * MS)).aggregates
    assert labels(flush_if_due)["source.event.period"] == 1000


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
        for tick in range(1, 301):  # one hundred threads each 10 ms for 3 s, a new span in each sample
            spans = (SpanRef(tick << 64 | number, tick << 20 | number, 1, number, "GET /") for number in range(1, 101))
            samples = [sample(thread, span) for thread, span in zip(threads, spans, strict=True)]
            feed.tick(*samples, after_ns=MS)
        profile = feed.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals(profile) == (30_000, 30_000_000, 300_000)
    assert len(profile.aggregates) <= sum((2048, 512, 512, 512))
    assert profile.dropped_labels == 30_000 - 2048
    assert peak < 8 << 20
    assert estimate_size(profile) < 8 << 20
