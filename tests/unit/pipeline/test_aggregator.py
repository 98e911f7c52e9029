"""The rules of aggregation and the end of a profile."""

from __future__ import annotations

import pytest
from aggregator_feed import MAIN, MS, SECOND_NS, STACK, WORK, Feed, collection, labels, sample, seen, totals

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.samples import InstrumentationSource, Sample, Snapshot, UnattributedReason, UnattributedTime


def test_samples_of_one_thread_in_one_place_are_one_aggregate() -> None:
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


def test_sample_in_a_span_has_its_ids_local_root_and_final_endpoint() -> None:
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


def test_unsampled_span_is_flagged_and_an_unknown_root_is_left_out() -> None:
    feed = Feed()
    feed.tick(sample(seen(), SpanRef(1, 2, 0)))
    (aggregate,) = feed.close().aggregates
    assert labels(aggregate)["trace_flags"] == "00"
    assert not {"local_root_span_id", "endpoint"} & labels(aggregate).keys()


def test_wait_kind_is_a_label_of_waiting_samples_only() -> None:
    feed = Feed()
    stack = Stack((Frame("shop", "take", "shop.py", 7, 5, "with"), MAIN), truncated=False)
    feed.tick(sample(seen(stack, running=False)), sample(seen(stack, thread=2)), sample(seen(running=False, thread=3)))
    found = {labels(each)["thread.id"]: labels(each).get("wait.kind") for each in feed.close().aggregates}
    assert found == {0x7001: "lock", 0x7002: None, 0x7003: None}


def test_a_thread_that_waits_for_the_gil_is_labelled_so_wherever_it_is() -> None:
    feed = Feed()
    stack = Stack((Frame("shop", "take", "shop.py", 7, 5, "with"), MAIN), truncated=False)
    waits = seen(stack, running=False)
    feed.tick(sample(waits._replace(waiting_on="GIL")), sample(waits), sample(waits._replace(waiting_on="GIL")))
    kinds = {labels(each)["wait.kind"]: each.count for each in feed.close().aggregates}
    assert kinds == {"gil": 2, "lock": 1}


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


def test_waits_for_the_gil_are_those_of_the_snapshots_of_the_profile() -> None:
    feed = Feed(interval_s=2)
    for wait_ms in (1, 9, 4):
        feed.now_ns += SECOND_NS
        feed.aggregator.take(Snapshot(feed.now_ns, SECOND_NS, (sample(seen()),), gil_wait_ns=wait_ms * MS))
    feed.aggregator.take(Snapshot(feed.now_ns, 0, (collection(),)))
    feed.close()
    assert [profile.comments for profile in feed.profiles] == [
        ("gil.wait: mean 5.000 ms, max 9.000 ms, 1 of 2 over 5 ms",),
        ("gil.wait: mean 4.000 ms, max 4.000 ms, 0 of 1 over 5 ms",),
    ]


def test_samples_of_different_periods_report_the_average_period() -> None:
    feed = Feed()
    for period_ns in (SECOND_NS, 3 * SECOND_NS):
        feed.tick(sample(seen())._replace(period_ns=period_ns))
    assert labels(feed.close().aggregates[0])["source.event.period"] == 2000


def test_snapshots_further_apart_than_the_interval_are_a_profile_each() -> None:
    feed = Feed(interval_s=1)
    for _ in range(3):
        feed.tick(sample(seen()), after_ns=60 * SECOND_NS)
    assert [profile.aggregates[0].count for profile in feed.profiles] == [1, 1, 1]


def test_samples_before_a_pause_are_sent_in_time_and_not_with_later_ones() -> None:
    feed = Feed(interval_s=10, source=InstrumentationSource.SNAPSHOT)
    feed.tick(sample(seen()))
    feed.now_ns += 5 * SECOND_NS
    feed.aggregator.flush_if_due(feed.now_ns)
    assert not feed.profiles
    feed.now_ns += 5 * SECOND_NS
    feed.aggregator.flush_if_due(feed.now_ns)
    (profile,) = feed.profiles
    assert (profile.source, profile.duration_ns) == (InstrumentationSource.SNAPSHOT, SECOND_NS)
    feed.now_ns += 500 * SECOND_NS
    feed.aggregator.flush_if_due(feed.now_ns)
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


def test_cpu_time_that_samples_have_again_is_deducted_from_later_windows() -> None:
    feed = Feed(interval_s=2)
    for cpu_ms in (8, -11, 5, 0):
        unsampled = UnattributedTime(UnattributedReason.UNSAMPLED, 0, cpu_ms * MS)
        feed.tick(sample(seen()), unattributed=(unsampled,))
    assert [totals(profile)[2] for profile in feed.profiles] == [20, 20 + 5 - 3]


def test_a_process_that_ends_before_the_first_snapshot_sends_nothing() -> None:
    feed = Feed()
    feed.aggregator.close((UnattributedTime(UnattributedReason.UNSAMPLED, 400 * MS, 1 * MS),))
    assert feed.profiles == []


def test_end_beyond_the_interval_is_of_the_profile_that_was_begun() -> None:
    feed = Feed(interval_s=2)
    feed.tick(sample(seen()))
    begun_ns = feed.now_ns - SECOND_NS
    feed.now_ns += 4 * SECOND_NS
    feed.aggregator.take(Snapshot(0, 0, ()))  # what idle threads had, when the process has ended
    profile = feed.close(UnattributedTime(UnattributedReason.UNSAMPLED, 4000 * MS, 1 * MS))
    assert feed.profiles == [profile]
    assert (profile.time_ns, profile.duration_ns, totals(profile)) == (begun_ns, 5 * SECOND_NS, (1, 5000, 11))


def test_samples_with_other_user_labels_are_apart_and_carry_them_last() -> None:
    feed = Feed()
    feed.tick(sample(seen(), route="/a"), sample(seen(), route="/b"), sample(seen(), route="/a"), sample(seen()))
    found = feed.close().aggregates
    assert [(labels(one).get("route"), one.count) for one in found] == [("/a", 2), ("/b", 1), (None, 1)]
    assert found[0].labels[-1] == ("route", "/a")


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


def test_profile_that_begins_with_events_has_the_last_snapshot_period() -> None:
    feed = Feed(interval_s=2)
    feed.tick(sample(seen()))
    feed.now_ns += SECOND_NS
    feed.aggregator.take(Snapshot(feed.now_ns, 0, (collection(),)))  # ends the first period
    assert len(feed.profiles) == 1
    (flush_if_due,) = feed.close(UnattributedTime(UnattributedReason.UNSAMPLED, 1 * MS, 1 * MS)).aggregates
    assert labels(flush_if_due)["source.event.period"] == 1000
