"""The counting of idle threads: for how long each was as a stream has it, and which threads are to be sampled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.model import Stack
from splunk_profiler.pipeline.thread_states import ThreadStates
from splunk_profiler.samples import Thread
from splunk_profiler.stream.captured import CapturedSnapshot, CapturedThread, ThreadState

PERIOD_NS = 10_000_000
THREADS = {number: CapturedThread(Thread(number, f"worker-{number}", number, number)) for number in range(1, 9)}
STACK = Stack((), truncated=False)


def state(number: int, cpu_ns: int = 5) -> ThreadState:
    return ThreadState(THREADS[number], STACK, None, (), cpu_ns, 0, 0)


class Counted:
    """Thread states, with the snapshots that change them."""

    def __init__(self, *, skips_idle: bool = True) -> None:
        self.states = ThreadStates(skips_idle=skips_idle)

    def update(
        self, *listed: int | ThreadState, ended: list[int] | None = None, complete: bool = False, periods: int = 1
    ) -> tuple[list[int], list[tuple[int, int, int]], list[int]]:
        """Return the threads to sample, idle times in periods, and the threads that have ended."""
        found = [state(one) if isinstance(one, int) else one for one in listed]
        snapshot = CapturedSnapshot(0, 0, 0, 0, 0, 0, 0, False, complete, found, ended or [])
        changes = self.states.update(snapshot, periods * PERIOD_NS)
        idle = [(one.number, one.snapshot_count, one.period_ns // PERIOD_NS) for one in changes.idle]
        return [one.number for one in changes.changed], idle, changes.ended


def test_thread_that_is_not_listed_is_counted_until_it_changes_or_ends() -> None:
    counted = Counted()
    assert counted.update(1, 2, complete=True) == ([1, 2], [], [])
    assert counted.update(1, 2) == ([1, 2], [], [])
    for _ in range(3):
        assert counted.update() == ([], [], [])
    moved = state(2, 9)
    assert counted.update(moved) == ([2], [(2, 3, 3)], [])
    assert [*counted.states.states()] == [state(1), moved]
    assert counted.update(ended=[1]) == ([], [(1, 4, 4)], [1])
    assert [*counted.states.states()] == [moved]


def test_thread_that_is_listed_each_time_has_no_idle_time() -> None:
    counted = Counted()
    assert [counted.update(1) for _ in range(5)] == [([1], [], [])] * 5


def test_idle_time_is_the_sum_of_the_periods_that_were_in_force() -> None:
    counted = Counted()
    counted.update(1, complete=True)
    for periods in (1, 7, 7):
        counted.update(periods=periods)
    assert counted.update(1, periods=100) == ([1], [(1, 3, 15)], [])


def test_without_counting_every_snapshot_reports_all_threads() -> None:
    counted = Counted(skips_idle=False)
    assert counted.update(1, 5, 6, complete=True) == ([1, 5, 6], [], [])
    for _ in range(3):
        assert counted.update(5) == ([1, 5, 6], [], [])
    assert counted.update(ended=[5]) == ([1, 6], [], [5])
    assert counted.states.take_idle_times() == []


def test_after_idle_times_are_taken_the_next_snapshot_reports_all() -> None:
    counted = Counted()
    for _ in range(2):
        counted.update(1, 2, 3)
    for _ in range(2):
        counted.update(3)
    assert counted.states.take_idle_times() == [(1, 2, 2 * PERIOD_NS), (2, 2, 2 * PERIOD_NS)]
    assert counted.states.take_idle_times() == []
    assert counted.update(3) == ([1, 2, 3], [], [])
    assert counted.update(3) == ([3], [], [])


def test_complete_snapshot_without_a_thread_ends_it_with_its_time() -> None:
    counted = Counted()
    counted.update(1, 2, complete=True)
    counted.update()
    assert counted.update(2, 3, complete=True) == ([2, 3], [(1, 1, 1), (2, 1, 1)], [1])


def test_ends_of_threads_that_are_not_known_change_nothing() -> None:
    counted = Counted()
    counted.update(1, complete=True)
    assert counted.update(ended=[7, 7]) == ([], [], [])
    assert counted.update(ended=[1, 1]) == ([], [(1, 1, 1)], [1])


steps = st.lists(st.tuples(st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)), st.booleans()), max_size=20)


@given(steps)
def test_each_thread_has_one_sample_or_one_count_for_each_snapshot(
    history: list[tuple[set[int], set[int], bool]],
) -> None:
    counted = Counted()
    alive: set[int] = set()
    lived, reported = dict.fromkeys(THREADS, 0), dict.fromkeys(THREADS, 0)
    for listed, ended, takes in history:
        sampled, idle, gone = counted.update(*sorted(listed), ended=sorted(ended - listed))
        assert set(gone) == alive & (ended - listed)
        alive = (alive - ended) | listed
        for number in alive:
            lived[number] += 1
        for number in sampled:
            reported[number] += 1
        for number, count, _ in idle:
            reported[number] += count
        if takes:
            for number, count, _ in counted.states.take_idle_times():
                reported[number] += count
            assert reported == lived
    for number, count, _ in counted.states.take_idle_times():
        reported[number] += count
    assert reported == lived
