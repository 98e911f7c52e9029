"""CPU time is divided among the samples in which a thread ran, exactly and without bias."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.model import Frame, Stack
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.cpu_shares import Bucket, CpuShares
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.samples import Profile, Sample, Snapshot, Thread, ThreadSample, UnattributedReason

MS = 1_000_000
PERIOD_NS = 10 * MS

THREADS = [Thread(index, name, index, index) for index, name in enumerate(["main", "pool-1", "pool-2", "pool-3"])]

uses = st.tuples(
    st.integers(0, 3),  # thread
    st.integers(0, 4),  # sum
    st.integers(0, 10**9),  # CPU time since its last sample
    st.sampled_from([(0, 0), (0, PERIOD_NS), (PERIOD_NS, PERIOD_NS), (3 * PERIOD_NS, 3 * PERIOD_NS)]),
)
steps = st.lists(uses | st.integers(0, 3) | st.none(), max_size=40)  # use, end of a thread, end of a profile


@given(steps)
def test_shares_give_all_that_was_used_and_no_nanosecond_twice(history: list[object]) -> None:
    shares, given_ns, used_ns = CpuShares(), 0, 0
    buckets = [Bucket(0) for _ in range(5)]
    for step in [*history, None]:
        if isinstance(step, tuple):
            thread, which, cpu_ns, (cpu_weight_ns, wanted_ns) = step
            shares.add(THREADS[thread], buckets[which], cpu_ns, cpu_weight_ns, wanted_ns)
            used_ns += cpu_ns
        elif isinstance(step, int):
            shares.forget(step)
        else:
            shares.distribute()
            given_ns += sum(found.cpu_ns for found in buckets)
            buckets = [Bucket(0) for _ in range(5)]  # buckets of an ended profile get no more time
    assert given_ns + shares.undistributed_ns() == used_ns


def test_shares_of_a_thread_go_to_its_own_samples_in_which_it_ran() -> None:
    shares, computes, waits, other = CpuShares(), Bucket(0), Bucket(0), Bucket(0)
    shares.add(THREADS[1], waits, 6 * MS, 0, 0)  # used before it began to wait
    shares.add(THREADS[1], computes, 3 * MS, PERIOD_NS, PERIOD_NS)
    shares.add(THREADS[2], other, 1 * MS, PERIOD_NS, PERIOD_NS)
    shares.distribute()
    assert (computes.cpu_ns, waits.cpu_ns, other.cpu_ns) == (9 * MS, 0, 1 * MS)


class CountingBucket(Bucket):
    """A bucket that counts the times that are added to any of them."""

    additions = 0

    def __setattr__(self, name: str, value: object) -> None:
        CountingBucket.additions += name == "cpu_ns"
        super().__setattr__(name, value)


def test_shares_of_ended_threads_with_names_of_their_own_are_divided_once() -> None:
    shares, buckets = CpuShares(), [CountingBucket(0) for _ in range(50)]
    for number in range(100):
        thread = Thread(number, chr(ord("A") + number), number, number)
        runs = PERIOD_NS if number < len(buckets) else 0
        shares.add(thread, buckets[number % len(buckets)], 1 * MS, runs, runs)
        shares.forget(number)
    CountingBucket.additions = 0
    shares.distribute()
    assert [bucket.cpu_ns for bucket in buckets] == [2 * MS] * len(buckets)
    assert CountingBucket.additions == 2 * len(buckets)


def test_shares_of_ended_threads_with_new_names_take_bounded_memory() -> None:
    shares, ran, waited, count = CpuShares(), Bucket(0), Bucket(0), 12_000
    tracemalloc.start()
    try:
        for number in range(count):
            runs = number % 2
            name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
            thread = Thread(number, name, number, number)
            shares.add(thread, ran if runs else waited, 1 * MS, PERIOD_NS * runs, 0)
            shares.forget(number)
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    shares.distribute()
    assert (ran.cpu_ns, waited.cpu_ns, shares.undistributed_ns()) == (count * MS, 0, 0)


def test_shares_weigh_a_sample_by_the_deadlines_it_stands_for() -> None:
    shares, long, short = CpuShares(), Bucket(0), Bucket(0)
    shares.add(THREADS[1], long, 30 * MS, 3 * PERIOD_NS, 3 * PERIOD_NS)
    shares.add(THREADS[1], short, 10 * MS, PERIOD_NS, PERIOD_NS)
    shares.distribute()
    assert (long.cpu_ns, short.cpu_ns) == (30 * MS, 10 * MS)


def test_shares_go_to_samples_that_wanted_a_processor_if_none_ran() -> None:
    shares, wants, waits = CpuShares(), Bucket(0), Bucket(0)
    shares.add(THREADS[1], wants, 2 * MS, 0, PERIOD_NS)
    shares.add(THREADS[1], waits, 5 * MS, 0, 0)
    shares.distribute()
    assert (wants.cpu_ns, waits.cpu_ns) == (7 * MS, 0)


def test_shares_of_threads_that_ended_are_for_those_of_them_that_ran() -> None:
    shares, ran, waited = CpuShares(), Bucket(0), Bucket(0)
    for index, name in enumerate("abcdefghij"):
        has_run = name == "d"
        thread = Thread(index, name, index, index)
        shares.add(thread, ran if has_run else waited, 1 * MS, PERIOD_NS * has_run, 0)
        shares.forget(index)
    shares.distribute()
    assert (ran.cpu_ns, waited.cpu_ns, shares.undistributed_ns()) == (10 * MS, 0, 0)


def test_shares_of_a_thread_that_was_not_seen_to_run_are_for_its_kind() -> None:
    shares, ran, waited, other, alone = CpuShares(), Bucket(0), Bucket(0), Bucket(0), Bucket(0)
    main, first, second, third = THREADS
    shares.add(first, ran, 3 * MS, PERIOD_NS, PERIOD_NS)
    shares.add(second, waited, 2 * MS, 0, 0)
    shares.add(third, waited, 1 * MS, 0, 0)
    shares.forget(third.index)
    shares.add(main, alone, 4 * MS, 0, 0)
    shares.add(Thread(7, "other", 7, 7), other, 5 * MS, PERIOD_NS, PERIOD_NS)
    shares.distribute()
    assert (ran.cpu_ns, waited.cpu_ns, other.cpu_ns, alone.cpu_ns) == (6 * MS, 0, 5 * MS, 0)
    assert shares.undistributed_ns() == 4 * MS


@pytest.mark.parametrize(
    ("seen", "not_seen", "is_alike"),
    [
        ("ThreadPoolExecutor-0_0", "ThreadPoolExecutor-0_11", True),
        ("ThreadPoolExecutor-0_0", "ThreadPoolExecutor-1_0", False),
        ("cache_3", "cache_12", True),
        ("worker-1", "worker-2", True),
        ("shard-1-worker-1", "shard-2-worker-1", False),
        ("Thread-3", "Thread-12", False),
        ("Dummy-1", "Dummy-2", False),
        ("Thread-3 (serve)", "Thread-12 (serve)", True),
        ("Thread-3 (serve_v1)", "Thread-12 (serve_v2)", False),
    ],
)
def test_threads_stand_for_others_of_their_pool_alone(seen: str, not_seen: str, is_alike: bool) -> None:
    shares, ran, waited = CpuShares(), Bucket(0), Bucket(0)
    shares.add(Thread(1, seen, 1, 1), ran, 3 * MS, PERIOD_NS, PERIOD_NS)
    shares.add(Thread(2, not_seen, 2, 2), waited, 2 * MS, 0, 0)
    shares.distribute()
    assert (ran.cpu_ns, shares.undistributed_ns()) == ((5 * MS, 0) if is_alike else (3 * MS, 2 * MS))


def snapshot(number: int, samples: list[tuple[Stack, int, int]]) -> Snapshot:
    """Return a snapshot of threads 1, 2, …; each is (stack, CPU time used since, CPU weight)."""
    made = [
        Sample(
            number * PERIOD_NS,
            PERIOD_NS,
            ThreadSample(
                Thread(index, f"thread {index}", index, index),
                stack,
                0,
                0,
                0,
                running=bool(ran),
                waiting_on="",
                wall_delta_ns=PERIOD_NS,
                cpu_delta_ns=cpu_ns,
                cpu_weight_ns=PERIOD_NS * ran,
            ),
            None,
        )
        for index, (stack, cpu_ns, ran) in enumerate(samples, 1)
    ]
    return Snapshot(number * PERIOD_NS, PERIOD_NS, tuple(made))


def stack_of(function: str) -> Stack:
    return Stack((Frame("shop", function, "shop.py", 1),), truncated=False)


def spent(profiles: list[Profile]) -> Counter[str]:
    found = Counter[str]()
    for profile in profiles:
        for aggregate in profile.aggregates:
            found[aggregate.stack.frames[0].function] += aggregate.cpu_ns
    return found


def test_profiles_say_without_bias_where_a_thread_used_its_time() -> None:
    """Take samples of a thread that does three kinds of work in turns shorter than a period."""
    chance = random.Random(3)
    busy = {"compute": 1.0, "talk": 0.25, "wait": 0.0}  # share of its time in which it has a processor
    stacks = {kind: stack_of(kind) for kind in busy}
    now, end = 0.0, 0.0
    kind, has_processor, used_ns, before_ns = "wait", False, 0.0, 0.0
    true = Counter[str]()
    profiles: list[Profile] = []
    clock_ns = 0
    aggregator = Aggregator(profiles.extend, interval_ns=1000 * PERIOD_NS, monotonic_ns=lambda: clock_ns)
    aggregator.begin(0, PERIOD_NS)
    for number in range(1, 15_001):
        deadline = float(number * PERIOD_NS)
        while now < deadline:
            if now >= end:
                kind = chance.choice(list(busy))
                end = now + chance.uniform(1, 6) * MS
            has_processor = chance.random() < busy[kind]
            step = min(chance.uniform(0, 0.5) * MS, end - now, deadline - now)
            now += step
            used_ns += step * has_processor
            true[kind] += int(step * has_processor)
        clock_ns = number * PERIOD_NS
        since_ns, before_ns = int(used_ns - before_ns), used_ns
        aggregator.take(snapshot(number, [(stacks[kind], since_ns, has_processor)]))
    aggregator.close(())
    found = spent(profiles)
    assert abs(found.total() - used_ns) < 15_000  # whole nanoseconds
    assert found["wait"] == 0
    for kind in busy:
        assert abs(found[kind] / found.total() - true[kind] / true.total()) < 0.01


def test_cpu_time_that_fits_no_sample_waits_and_is_unsampled_at_the_end() -> None:
    profiles: list[Profile] = []
    clock_ns = 0
    aggregator = Aggregator(profiles.extend, interval_ns=PERIOD_NS, monotonic_ns=lambda: clock_ns)
    aggregator.begin(0, PERIOD_NS)
    stack = stack_of("serve")
    for number, (cpu_ns, ran) in enumerate([(4 * MS, 0), (1 * MS, 1), (2 * MS, 0)], 1):
        clock_ns = number * PERIOD_NS
        aggregator.take(snapshot(number, [(stack, cpu_ns, ran)]))
    aggregator.close(())
    first, second, third, last = (spent([profile]) for profile in profiles)
    assert (first["serve"], second["serve"], third["serve"]) == (0, 5 * MS, 0)
    assert last == {UNATTRIBUTED_STACKS[UnattributedReason.UNSAMPLED].frames[0].function: 2 * MS}
