"""The times of threads since their last samples, and their sums."""

from __future__ import annotations

import random
import tracemalloc
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.pipeline.thread_times import ThreadTimeDelta, ThreadTimes
from splunk_profiler.samples import UnattributedReason, UnattributedTime
from splunk_profiler.stream.captured import StartTime

MS = 1_000_000
TICK = 10 * MS


class World:
    """The CPU clock of a process, with ended threads, and the times of its threads."""

    def __init__(self) -> None:
        self.cpu_ns = 700 * MS
        self.thread_times = ThreadTimes()
        self.threads: set[int] = set()

    def snapshot(
        self, now_ms: int, *threads: tuple[int, StartTime | None, int], reason: UnattributedReason | None = None
    ) -> tuple[list[ThreadTimeDelta], tuple[UnattributedTime, ...]]:
        self.thread_times.begin(now_ms * MS, self.cpu_ns, 0)
        delta = [self.thread_times.charge(thread, start_time, cpu * MS, reason) for thread, start_time, cpu in threads]
        ended, self.threads = self.threads, {thread for thread, _, _ in threads}
        return delta, self.thread_times.end(ended - self.threads)

    def close(self, now_ms: int) -> tuple[UnattributedTime, ...]:
        return self.thread_times.close(now_ms * MS, self.cpu_ns)


@pytest.fixture
def world() -> World:
    return World()


def unsampled(wall_ms: int, cpu_ms: int) -> UnattributedTime:
    return UnattributedTime(UnattributedReason.UNSAMPLED, wall_ms * MS, cpu_ms * MS)


def test_the_first_snapshot_opens_the_accounts(world: World) -> None:
    assert world.snapshot(1000, (1, None, 600)) == ([ThreadTimeDelta(0, 0)], ())


def test_sample_covers_the_time_since_the_last_one_however_late_it_is(world: World) -> None:
    world.snapshot(1000, (1, None, 600), (2, None, 50))
    world.cpu_ns += 35 * MS
    delta, unattributed = world.snapshot(1073, (1, None, 630), (2, None, 55))
    assert delta == [ThreadTimeDelta(73 * MS, 30 * MS), ThreadTimeDelta(73 * MS, 5 * MS)]
    assert unattributed == ()


def test_first_sample_covers_the_whole_period_and_the_next_the_rest_of_age(
    world: World,
) -> None:
    start_time = StartTime(1050 * MS, 1060 * MS)
    world.snapshot(1000, (1, None, 600))
    world.cpu_ns += 20 * MS
    delta, unattributed = world.snapshot(1100, (1, None, 600), (2, start_time, 20))
    assert delta[1] == ThreadTimeDelta(100 * MS, 20 * MS)
    assert unattributed == ()
    world.cpu_ns += 5 * MS
    delta, _ = world.snapshot(1200, (1, None, 600), (2, start_time, 25))
    assert delta[1] == ThreadTimeDelta(45 * MS, 5 * MS)  # it was born in the middle of a tick
    assert world.snapshot(1300, (1, None, 600), (2, start_time, 25))[0][1] == ThreadTimeDelta(100 * MS, 0)


def test_second_sample_before_the_first_has_run_out_covers_no_time(world: World) -> None:
    start_time = StartTime(1090 * MS, 1100 * MS)
    world.snapshot(1000, (1, None, 600))
    world.snapshot(1100, (2, start_time, 0))
    assert world.snapshot(1150, (2, start_time, 0))[0] == [ThreadTimeDelta(0, 0)]
    assert world.snapshot(1250, (2, start_time, 0))[0] == [ThreadTimeDelta(55 * MS, 0)]


def test_thread_older_than_the_first_snapshot_counts_from_that_snapshot(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    delta, _ = world.snapshot(1100, (1, None, 600), (2, StartTime(995 * MS, 1005 * MS), 0))
    assert delta[1].wall_ns == 100 * MS
    delta, _ = world.snapshot(1200, (2, StartTime(995 * MS, 1005 * MS), 0))
    assert delta[0].wall_ns == 100 * MS - 5 * MS // 2


@pytest.mark.parametrize("first_step_ms", [1200, 1300, 2000])
def test_a_thread_that_has_waited_for_its_first_step_counts_from_its_birth(world: World, first_step_ms: int) -> None:
    for now_ms in range(1000, first_step_ms, 100):
        world.snapshot(now_ms, (1, None, 600))
    delta, _ = world.snapshot(first_step_ms, (1, None, 600), (2, StartTime(1080 * MS, 1090 * MS), 0))
    assert delta[1].wall_ns == (first_step_ms - 1085) * MS


def test_old_thread_that_is_new_to_python_is_charged_no_earlier_time(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    world.cpu_ns += 30 * MS
    delta, unattributed = world.snapshot(1100, (1, None, 630), (2, StartTime(0, TICK), 80))
    assert delta[1] == ThreadTimeDelta(100 * MS, 0)
    assert unattributed == ()
    world.cpu_ns += 7 * MS
    delta, unattributed = world.snapshot(1200, (1, None, 630), (2, StartTime(0, TICK), 85))
    assert delta[1] == ThreadTimeDelta(100 * MS, 5 * MS)
    assert unattributed == (unsampled(0, 2),)


def test_thread_that_ended_before_its_start_was_read_is_charged_a_period(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    world.cpu_ns += 20 * MS
    assert world.snapshot(1100, (2, None, 20), (3, None, 5000))[0] == [
        ThreadTimeDelta(100 * MS, 20 * MS),
        ThreadTimeDelta(100 * MS, 100 * MS),
    ]


def test_thread_that_runs_python_now_and_then_is_charged_what_it_used(world: World) -> None:
    world.snapshot(0, (1, None, 600))
    charged_ms = unattributed_ms = 0.0
    for second in range(1, 601):  # it uses 2 ms in each
        world.cpu_ns += 2 * MS
        native = [(2, StartTime(0, TICK), 5000 + 2 * second)] if second % 10 == 0 else []
        deltas, unattributed = world.snapshot(1000 * second, (1, None, 600), *native)
        charged_ms += deltas[-1].cpu_ns / MS
        unattributed_ms += sum(one.cpu_ns for one in unattributed) / MS
    assert charged_ms == 1200 - 20  # without the first ten seconds, which came before its first sample
    assert unattributed_ms == 20


@pytest.mark.parametrize("every", [15, 30])
def test_thread_that_worked_out_of_sight_is_charged_a_period_at_most(world: World, every: int) -> None:
    start_time = StartTime(0, TICK)
    world.snapshot(1000, (1, None, 600))
    world.snapshot(1100, (2, start_time, 0))
    charged_ms = unattributed_ms = 0.0
    for number in range(1, 61):
        world.cpu_ns += 100 * MS
        native = [(2, start_time, number * 100)] if number % every == 0 else []
        deltas, unattributed = world.snapshot(1100 + number * 100, *native)
        charged_ms += sum(one.cpu_ns for one in deltas) / MS
        unattributed_ms += sum(one.cpu_ns for one in unattributed) / MS
    assert (charged_ms, unattributed_ms) == (60 // every * 100, 6000 - 60 // every * 100)


def test_excluded_threads_are_unattributed_cpu_time_without_wall_time(world: World) -> None:
    world.snapshot(1000, (9, None, 10), reason=UnattributedReason.INTERNAL)
    world.cpu_ns += 7 * MS
    _, unattributed = world.snapshot(1100, (9, None, 17), reason=UnattributedReason.INTERNAL)
    assert unattributed == (UnattributedTime(UnattributedReason.INTERNAL, 0, 7 * MS),)


def test_time_of_an_excluded_thread_is_in_its_next_sample_or_unattributed(
    world: World,
) -> None:
    start_time = StartTime(1030 * MS, 1040 * MS)
    world.snapshot(1000, (1, None, 600))
    world.snapshot(1100, (2, start_time, 0), reason=UnattributedReason.INTERNAL)  # it is being started
    assert world.snapshot(1200, (2, start_time, 0))[0] == [ThreadTimeDelta(165 * MS, 0)]
    world.snapshot(1300, (2, start_time, 0), reason=UnattributedReason.INTERNAL)  # it ends
    world.snapshot(1400)
    # 100 ms in which it was excluded, and an eighth of the way to the middle of the next period.
    assert world.snapshot(1500)[1] == (UnattributedTime(UnattributedReason.UNSAMPLED, 106_250_000, 0),)


def test_time_of_an_excluded_thread_is_in_no_sample_that_comes_later(world: World) -> None:
    world.snapshot(1000, (2, None, 0))
    world.snapshot(1100, (2, None, 0), reason=UnattributedReason.INTERNAL)
    world.thread_times.begin(1200 * MS, world.cpu_ns, 0)  # it is idle
    assert world.thread_times.end(()) == ()
    delta, unattributed = world.snapshot(1300, (2, None, 0))
    assert delta == [ThreadTimeDelta(100 * MS, 0)]
    assert unattributed == (unsampled(200, 0),)


def test_first_sample_of_a_thread_that_was_long_excluded_has_little_of_it(world: World) -> None:
    start_time = StartTime(1030 * MS, 1040 * MS)
    world.snapshot(1000)
    for now_ms in range(1100, 9000, 100):
        world.snapshot(now_ms, (2, start_time, 0), reason=UnattributedReason.INTERNAL)
    assert world.snapshot(9000, (2, start_time, 0))[0] == [ThreadTimeDelta(2000 * MS, 0)]


def test_cpu_time_that_no_thread_of_a_snapshot_has_used_is_a_remainder(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    world.cpu_ns += 40 * MS
    _, unattributed = world.snapshot(1100, (1, None, 610))
    assert unattributed == (unsampled(0, 30),)


def test_cpu_time_that_is_used_while_the_clocks_are_read_counts_once(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    world.cpu_ns += 30 * MS
    world.thread_times.begin(1100 * MS, world.cpu_ns, 0)
    world.cpu_ns += 8 * MS  # used by the thread before its clock is read
    assert world.thread_times.charge(1, None, 638 * MS) == ThreadTimeDelta(100 * MS, 38 * MS)
    world.cpu_ns += 5 * MS  # used after that
    assert world.thread_times.end(()) == (unsampled(0, -8),)  # in advance of the process's clock
    world.cpu_ns += 2 * MS
    assert world.snapshot(1200, (1, None, 645)) == ([ThreadTimeDelta(100 * MS, 7 * MS)], (unsampled(0, 8),))
    assert world.close(1200) == ()


def test_ended_thread_is_charged_half_of_the_time_it_was_not_seen(world: World) -> None:
    world.snapshot(1000, (1, None, 600), (2, None, 5))
    world.cpu_ns += 4 * MS
    assert world.snapshot(1100, (1, None, 600))[1] == (unsampled(0, 4),)
    assert world.snapshot(1200, (1, None, 600))[1] == (unsampled(50, 0),)
    assert world.snapshot(1300, (1, None, 600))[1] == ()


def test_a_thread_that_was_left_out_of_one_snapshot_is_charged_once(world: World) -> None:
    world.snapshot(1000, (1, None, 600), (2, None, 5))
    world.cpu_ns += 8 * MS
    assert world.snapshot(1100, (1, None, 600))[1] == (unsampled(0, 8),)
    delta, unattributed = world.snapshot(1200, (1, None, 600), (2, None, 13))
    assert delta[1] == ThreadTimeDelta(200 * MS, 8 * MS)
    assert unattributed == (unsampled(0, -8),)


def test_a_thread_with_the_id_of_one_that_has_ended_begins_anew(world: World) -> None:
    world.snapshot(1000, (2, None, 500))
    world.cpu_ns += 3 * MS
    delta, _ = world.snapshot(1100, (2, StartTime(1090 * MS, 1100 * MS), 3))
    assert delta == [ThreadTimeDelta(100 * MS, 3 * MS)]


def test_a_thread_whose_clock_could_not_be_read_goes_on_from_where_it_was(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    assert world.snapshot(1100, (1, None, 0))[0] == [ThreadTimeDelta(100 * MS, 0)]
    assert world.snapshot(1200, (1, None, 610))[0] == [ThreadTimeDelta(100 * MS, 10 * MS)]


def test_clock_read_before_that_of_a_late_snapshot_counts_nothing_twice(world: World) -> None:
    start = StartTime(1005 * MS, 1015 * MS)
    world.snapshot(1000)
    world.cpu_ns += 40 * MS
    world.snapshot(1050, (1, start, 40))
    world.cpu_ns -= 2 * MS
    (sample,), unattributed = world.snapshot(1060, (1, start, 38))
    assert sample.cpu_ns == 0
    assert unattributed == (unsampled(0, -2),)
    world.cpu_ns += 5 * MS
    (sample,), unattributed = world.snapshot(1070, (1, start, 43))
    assert sample.cpu_ns == 3 * MS
    assert unattributed == (unsampled(0, 2),)


def test_the_end_brings_what_was_used_since_the_last_snapshot(world: World) -> None:
    world.snapshot(1000, (1, None, 600), (2, None, 0))
    world.snapshot(1100, (1, None, 600))
    world.cpu_ns += 9 * MS
    assert world.close(1130) == (unsampled(30 + 50, 9),)


def test_without_a_snapshot_there_is_nothing_to_account_for(world: World) -> None:
    assert world.close(1000) == ()


def charged_wall_ns(born_ms: list[int], life_ms: int, instants: Iterable[tuple[int, int]]) -> int:
    """Return the wall time of threads of one lifetime, by birth, in snapshots at these deadlines with their delays."""
    thread_times, wall_ns, previous = ThreadTimes(), 0, range(0)
    for now_ms, late_ms in instants:
        thread_times.begin(now_ms * MS, 0, late_ms * MS)
        seen_ms = now_ms + late_ms
        alive = range(bisect_right(born_ms, seen_ms - life_ms), bisect_right(born_ms, seen_ms))
        for thread in alive:
            tick = born_ms[thread] // 10 * 10 * MS
            wall_ns += thread_times.charge(thread + 1, StartTime(tick, tick + TICK), 0).wall_ns
        ended = range(previous.start + 1, min(previous.stop, alive.start) + 1)
        wall_ns += sum(time.wall_ns for time in thread_times.end(ended))
        previous = alive
    return wall_ns


@pytest.mark.parametrize("life", [0.05, 0.3, 0.9, 1.0, 1.5, 2.5, 12.5, 16.5, 40])
def test_wall_time_adds_up_for_threads_of_any_lifetime(life: float) -> None:
    period_ms, chance = 400, random.Random(1)
    lived_ms = int(life * period_ms)
    born_ms = sorted(chance.randrange(0, 40_000) for _ in range(int(2000 / life) if life < 1 else 1000))
    wall_ns = charged_wall_ns(born_ms, lived_ms, ((now_ms, 0) for now_ms in range(0, 42_000 + lived_ms, period_ms)))
    assert abs(wall_ns / (lived_ms * len(born_ms) * MS) - 1) < 0.05  # of a thousand that are seen, or more


@dataclass(frozen=True)
class ThreadLifetime:
    born_ms: int
    ended_ms: int
    busy: float  # share of its time in which it uses the CPU

    def cpu_ns_at(self, now_ms: int) -> int:
        return int(max(min(now_ms, self.ended_ms) - self.born_ms, 0) * self.busy * MS)


lifetimes = st.builds(
    lambda born, length, busy: ThreadLifetime(born, born + length, busy),
    st.integers(0, 5_000),
    st.integers(1, 5_000),
    st.floats(0, 1),
)
gaps = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(st.lists(lifetimes, max_size=12), gaps)
def test_cpu_time_adds_up_and_wall_time_is_off_by_less_than_the_end_gaps(
    population: list[ThreadLifetime], distances: list[int]
) -> None:
    now_ms = 100
    thread_times = ThreadTimes()
    begun_ms, wall_ns, cpu_ns, slack_ns = now_ms, 0, 0, 0
    begun_cpu_ns = sum(lifetime.cpu_ns_at(now_ms) for lifetime in population)
    instants = [now_ms]
    for distance in distances:
        instants.append(instants[-1] + distance)
    for now_ms in instants:  # which the process's clock reads
        thread_times.begin(now_ms * MS, sum(lifetime.cpu_ns_at(now_ms) for lifetime in population), 0)
        for number, lifetime in enumerate(population, 1):
            if lifetime.born_ms <= now_ms < lifetime.ended_ms:
                tick = lifetime.born_ms // 10 * 10
                delta = thread_times.charge(number, StartTime(tick * MS, tick * MS + TICK), lifetime.cpu_ns_at(now_ms))
                wall_ns, cpu_ns = wall_ns + delta.wall_ns, cpu_ns + delta.cpu_ns
        for unattributed_time in thread_times.end(range(1, len(population) + 1)):
            wall_ns, cpu_ns = wall_ns + unattributed_time.wall_ns, cpu_ns + unattributed_time.cpu_ns
    for unattributed_time in thread_times.close(
        now_ms * MS, sum(lifetime.cpu_ns_at(now_ms) for lifetime in population)
    ):
        wall_ns, cpu_ns = wall_ns + unattributed_time.wall_ns, cpu_ns + unattributed_time.cpu_ns
    lived_ns = (
        sum(max(min(lifetime.ended_ms, now_ms) - max(lifetime.born_ms, begun_ms), 0) for lifetime in population) * MS
    )
    for lifetime in population:
        seen = [instant for instant in instants if lifetime.born_ms <= instant < lifetime.ended_ms]
        if not seen:
            slack_ns += max(min(lifetime.ended_ms, now_ms) - max(lifetime.born_ms, begun_ms), 0) * MS
            continue
        earlier = [instant for instant in instants if instant < lifetime.born_ms]
        slack_ns += TICK + (seen[0] - earlier[-1]) * MS if earlier else 0
        later = [instant for instant in instants if instant >= lifetime.ended_ms]
        slack_ns += (later[0] - seen[-1]) * MS if later else 0
    assert cpu_ns == sum(lifetime.cpu_ns_at(now_ms) for lifetime in population) - begun_cpu_ns
    assert abs(wall_ns - lived_ns) <= slack_ns


@pytest.mark.parametrize("life_ms", [35, 160, 900])
def test_wall_time_adds_up_however_late_snapshots_are(life_ms: int) -> None:
    period_ms, chance = 10, random.Random(4)
    born_ms = sorted(chance.randrange(0, 4_000) for _ in range(2000))
    instants = ((now_ms, chance.choice([0, 0, 1, 4, 9])) for now_ms in range(0, 4_200 + life_ms, period_ms))
    wall_ns = charged_wall_ns(born_ms, life_ms, instants)
    assert abs(wall_ns / (life_ms * len(born_ms) * MS) - 1) < 0.01


@pytest.mark.parametrize(("missed", "cpu_ms"), [(1, 190), (2, 190), (5, 170)])  # of more, a period at most
def test_thread_that_was_left_out_and_comes_back_is_charged_once(world: World, missed: int, cpu_ms: int) -> None:
    start_time = StartTime(1050 * MS, 1060 * MS)
    world.snapshot(1000)
    charged_ns = cpu_ns = 0
    for now_ms in range(1100, 2001, 100):
        world.cpu_ns += 20 * MS
        threads = [] if 1500 <= now_ms < 1500 + 100 * missed else [(2, start_time, (now_ms - 1050) // 5)]
        delta, unattributed = world.snapshot(now_ms, *threads)
        charged_ns += sum(one.wall_ns for one in delta) + sum(one.wall_ns for one in unattributed)
        cpu_ns += sum(one.cpu_ns for one in delta)
    assert charged_ns == 945 * MS
    assert cpu_ns == cpu_ms * MS


def test_another_thread_with_the_id_of_an_ended_one_starts_anew(world: World) -> None:
    world.snapshot(1000, (1, None, 600))
    world.snapshot(1100, (1, None, 600), (2, StartTime(1050 * MS, 1060 * MS), 20))
    for now_ms in (1200, 1300):
        world.snapshot(now_ms, (1, None, 600))
    delta, _ = world.snapshot(1400, (1, None, 600), (2, StartTime(1380 * MS, 1390 * MS), 30))
    assert delta[1] == ThreadTimeDelta(100 * MS, 30 * MS)


def test_most_of_many_ended_threads_are_forgotten(world: World) -> None:
    def see(threads: range) -> None:
        for number in threads:
            world.snapshot(1000 + number * 10, (number, StartTime(0, 0), 0))

    see(range(5000))
    tracemalloc.start()
    try:
        see(range(5000, 20_000))
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
