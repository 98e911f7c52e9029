"""Profiles are the same whether idle threads are sampled in each snapshot or counted."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stream_feed import StreamedBuilder

from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.pipeline.window import Bounds
from splunk_profiler.raw import RawSnapshot, RawThread
from splunk_profiler.samples import IdleRepeat, Profile, Sample, Snapshot, UnattributedReason

MS = 1_000_000
PERIOD_NS = 100 * MS
STACKS: list[Any] = [
    Stack((Frame("shop", f"work_{number}", "shop.py", number),), truncated=False) for number in range(3)
] + [None]
NO_STACK = 3  # a snapshot with it fails
SPANS = [None, SpanRef(1, 2, 1), SpanRef(3, 4, 1)]
FIRST_ID = 1 << 30  # above all ids that Linux gives
BEGAN_NS, BEGAN_INSTANT_NS = 1_000_000 * PERIOD_NS, 10_000 * PERIOD_NS


class Doing(NamedTuple):
    """A thread in a snapshot: True if it ran since the previous one, its stack and its span."""

    ran: bool = False
    stack: int = 0
    span: int = 0


class Observer:
    """A snapshot builder whose threads have made-up clocks, and its profiles."""

    def __init__(
        self,
        *,
        skip_idle: bool = True,
        skips_quiet: bool = False,
        spans: int = 100,
        periods: int = 5,
    ) -> None:
        self._skips_quiet = skips_quiet
        self._last: dict[int, Doing] | None = None  # of the last snapshot
        self._quiet_count = 0

        self._cpu_ns: dict[int, int] = {}
        self._now_ns = 0
        self.samples: list[Sample] = []
        self.capture = StreamedBuilder(lambda context: context, period_ns=PERIOD_NS, skips_idle=skip_idle)
        self.profiles: list[Profile] = []
        self._aggregator = Aggregator(
            self.profiles.extend,
            interval_ns=periods * PERIOD_NS,
            monotonic_ns=lambda: self._now_ns,
            bounds=Bounds(spans=spans),
            take_idle_repeats=self.capture.take_idle_repeats,
        )

    def see(self, threads: dict[int, Doing], *, sets_baseline: bool = False) -> None:
        """Take the next snapshot, or count its deadline, as a ticker does."""
        is_quiet = self._skips_quiet and not any(doing.ran for doing in threads.values()) and threads == self._last
        self._last = threads
        if is_quiet:
            self._now_ns += PERIOD_NS
            self._quiet_count += 1
            return
        self._take_quiet()
        self._now_ns += PERIOD_NS
        seen = []
        for key, doing in sorted(threads.items()):
            native_id = FIRST_ID + key
            self._cpu_ns[native_id] = self._cpu_ns.get(native_id, MS) + 7 * MS * doing.ran
            cpu_ns, state = self._cpu_ns[native_id], 2 * doing.ran
            seen.append(RawThread(key, key, native_id, STACKS[doing.stack], SPANS[doing.span], None, cpu_ns, state))
        used_ns = sum(self._cpu_ns.values())
        instant_ns = BEGAN_INSTANT_NS + self._now_ns
        raw = RawSnapshot(BEGAN_NS + self._now_ns, 0, tuple(seen), PERIOD_NS, False, PERIOD_NS, used_ns, instant_ns)
        if sets_baseline:
            self.capture.set_baseline(raw)
            return
        self._deliver(self.capture.snapshot(raw))

    def _deliver(self, snapshot: Snapshot) -> None:
        self.samples += snapshot.samples
        self._aggregator.take(snapshot)

    def _take_quiet(self) -> None:
        count, self._quiet_count = self._quiet_count, 0
        if count:
            time_ns, instant_ns = BEGAN_NS + self._now_ns, BEGAN_INSTANT_NS + self._now_ns
            used_ns = sum(self._cpu_ns.values())
            raw = RawSnapshot(time_ns, 0, (), PERIOD_NS, False, 0, used_ns, instant_ns, quiet_count=count)
            for snapshot in self.capture.quiet(raw):
                self._deliver(snapshot)

    def end(self) -> list[Profile]:
        """Close and return all profiles."""
        self._take_quiet()
        time_ns = BEGAN_NS + self._now_ns
        self._aggregator.take(Snapshot(time_ns, PERIOD_NS, (), idle_repeats=self.capture.take_idle_repeats()))
        self._aggregator.close(self.capture.unattributed())
        return self.profiles


def functions(stack: Stack) -> tuple[str, ...]:
    """Return what tells the stacks apart; each stream has frames of its own."""
    return tuple(frame.function for frame in stack.frames)


def told(sample: Sample) -> tuple[Any, ...]:
    """Return what the record of a sample tells, without the number of its thread: these come back here."""
    seen = sample.thread
    thread = (seen.thread.native_id, seen.running, seen.waiting_on, seen.cpu_ns, seen.start_ns)
    return sample.time_ns, sample.instant_ns, *thread, functions(seen.stack), sample.span


def sums(profile: Profile, name: str) -> dict[Any, int]:
    """Return the sums of this name over samples, by stack and labels."""
    return {
        (functions(aggregate.stack), aggregate.labels): getattr(aggregate, name)
        for aggregate in profile.aggregates
        if aggregate.count
    }


doings = st.builds(Doing, st.booleans(), st.integers(0, 2), st.integers(0, 2))
# Threads seldom change: (thread, its state from now on, or None if it is gone).
histories = st.lists(st.dictionaries(st.integers(1, 5), st.none() | doings, max_size=2), min_size=1, max_size=25)

# Two threads of one kind, between whose samples a thread's CPU time is divided in another order.
UNEVEN: list[dict[int, Doing | None]] = [
    {},
    {3: Doing()},
    {3: None, 1: Doing(ran=True)},
    {3: Doing(), 1: Doing()},
    {2: Doing(ran=True), 3: Doing(ran=True)},
]


@pytest.mark.parametrize("spans", [100, 1])
@given(histories)
@example(UNEVEN)
def test_what_is_counted_is_what_would_have_been_sampled(spans: int, history: list[dict[int, Doing | None]]) -> None:
    observers = [Observer(skip_idle=skip_idle, spans=spans) for skip_idle in (False, True)]
    watch(history, observers)
    # The CPU time of this process may be unattributed, alone in a profile.
    sampled, counted = ([profile for profile in observer.end() if sums(profile, "count")] for observer in observers)
    assert [profile.dropped_labels for profile in sampled] == [profile.dropped_labels for profile in counted]
    for one, other in zip(sampled, counted, strict=True):
        assert sums(one, "count") == sums(other, "count")
        assert sums(one, "wall_ns") == sums(other, "wall_ns")
        # What cannot be divided evenly is a nanosecond more for the sample that comes first.
        assert sums(one, "cpu_ns") == pytest.approx(sums(other, "cpu_ns"), abs=len(history))
        assert sum(sums(one, "cpu_ns").values()) == sum(sums(other, "cpu_ns").values())


@pytest.mark.parametrize("periods", [5, 100])
@given(histories)
@example([{1: Doing(ran=True), 2: Doing(span=1)}, *[{}] * 12, {2: None}, *[{}] * 4, {1: Doing(ran=True, stack=1)}])
def test_quiet_deadlines_are_what_as_many_unchanged_snapshots_are(
    periods: int, history: list[dict[int, Doing | None]]
) -> None:
    observers = [Observer(skips_quiet=skips_quiet, periods=periods) for skips_quiet in (False, True)]
    watch(history, observers)
    captured, counted = (observer.end() for observer in observers)
    assert in_all(captured, "count") == in_all(counted, "count")
    assert in_all(captured, "wall_ns") == in_all(counted, "wall_ns")
    if periods > len(history):  # CPU time is divided among the samples of a profile, and profiles end otherwise
        assert in_all(captured, "cpu_ns") == in_all(counted, "cpu_ns")


@given(histories)
@example([{1: Doing(ran=True, stack=1), 2: Doing(span=1)}, *[{}] * 9, {2: None}, *[{}] * 3, {1: Doing(ran=True)}])
def test_quiet_deadlines_have_the_samples_of_as_many_snapshots(history: list[dict[int, Doing | None]]) -> None:
    observers = [Observer(skip_idle=False, skips_quiet=skips_quiet) for skips_quiet in (False, True)]
    watch(history, observers)
    for observer in observers:
        observer.end()
    captured, counted = ([told(sample) for sample in observer.samples] for observer in observers)
    assert captured == counted


def watch(history: list[dict[int, Doing | None]], observers: list[Observer]) -> None:
    """Have observers see a history."""
    threads: dict[int, Doing] = {}
    for number, find_changes in enumerate(history):
        threads = {key: doing._replace(ran=False) for key, doing in threads.items()}
        for key, doing in find_changes.items():
            if doing is None:
                threads.pop(key, None)
            else:
                threads[key] = doing
        for observer in observers:
            observer.see(threads, sets_baseline=number == 0)


def in_all(profiles: list[Profile], name: str) -> Counter[Any]:
    """Return the sums of this name over all profiles, by stack and labels but the time of a profile."""
    found: Counter[Any] = Counter()
    for aggregate in (each for profile in profiles for each in profile.aggregates if each.count):
        labels = tuple(label for label in aggregate.labels if label[0] != "source.event.time")
        found[functions(aggregate.stack), labels] += getattr(aggregate, name)
    return found


def test_a_thread_that_rests_costs_two_samples_in_a_profile() -> None:
    observer = Observer()
    threads = {1: Doing(ran=True), 2: Doing()}
    for number in range(6):
        observer.see(threads, sets_baseline=number == 0)
    assert len(observer.samples) == 5 + 1  # it was idle in the first snapshot already
    (profile,) = observer.profiles
    assert sorted(sums(profile, "count").values()) == [5, 5]


def test_snapshot_after_a_failed_one_samples_all_threads_with_its_time() -> None:
    observer = Observer()
    for number in range(3):
        observer.see({1: Doing(), 2: Doing()}, sets_baseline=number == 0)
    raw = RawSnapshot(0, 0, (1,), PERIOD_NS, False, 0)  # type: ignore[arg-type]  # no thread at all
    with pytest.raises(AttributeError):
        observer.capture.recorder.record_snapshot(raw)
    for _ in range(3):
        observer.see({2: Doing(stack=1)})
    walls_ns: dict[str, int] = {}
    for profile in observer.end():
        for aggregate in profile.aggregates:
            name = aggregate.stack.frames[0].function
            walls_ns[name] = walls_ns.get(name, 0) + aggregate.wall_ns
    assert walls_ns["work_0"] + walls_ns["work_1"] == (2 + 5) * PERIOD_NS


def test_idle_threads_lose_nothing_if_a_snapshot_fails_after_the_report() -> None:
    observer = Observer()
    threads = {1: Doing(), 2: Doing(span=1), 3: Doing()}
    for number in range(4):
        observer.see(threads, sets_baseline=number == 0)
    with pytest.raises(AttributeError, match="frames"):
        observer.see({**threads, 2: Doing(ran=True, stack=NO_STACK)})
    for _ in range(6):
        observer.see(threads)
    idle = [one for profile in observer.end() for one in profile.aggregates if ("thread.id", 3) in one.labels]
    assert sum(one.wall_ns for one in idle) == 10 * PERIOD_NS
    assert 9 <= sum(one.count for one in idle) <= 10


def test_what_was_never_sampled_here_is_time_that_is_in_no_sample() -> None:
    profiles: list[Profile] = []
    aggregator = Aggregator(profiles.extend, interval_ns=10**12)
    aggregator.take(Snapshot(1, PERIOD_NS, (), idle_repeats=(IdleRepeat(7, 3, 3 * PERIOD_NS, 250 * MS),)))
    aggregator.close(())
    (profile,) = profiles
    assert [(found.stack, found.wall_ns) for found in profile.aggregates] == [
        (UNATTRIBUTED_STACKS[UnattributedReason.UNSAMPLED], 250 * MS)
    ]
