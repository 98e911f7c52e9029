"""The sampling period under a limit: simulated work of known cost, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from hypothesis import example, given, settings
from hypothesis import strategies as st

from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.raw import Periods

MS = 1_000_000
S = 1_000_000_000
SNAPSHOT_BYTES = 2000
Load = Callable[[float], float]


class Work:
    """A simulated profiler whose snapshots cost CPU time.

    Args:
        configured_ms: configured period.
        limit: share of a core.
        cost_ms: second since the start → CPU time of a snapshot.
        each_ten_seconds_ms: CPU time of each export.
        always: CPU time independent of the period, as a share of a core.
        capacity: snapshots that the other side takes in a second.
    """

    def __init__(
        self,
        configured_ms: int,
        limit: float,
        cost_ms: Load,
        *,
        each_ten_seconds_ms: float = 0,
        always: float = 0,
        capacity: Load = lambda _: inf,
    ) -> None:
        self.limiter = OverheadLimiter(configured_ms * MS, limit)
        self._cost_ms = cost_ms
        self._sent_ms = each_ten_seconds_ms
        self._always = always
        self._capacity = capacity
        self.backlog_bytes = 0.0
        self._now_ns = 0
        self._spent_ns = 0.0
        self.periods_ms: list[float] = []

    def go_on(self, seconds: float) -> float:
        """Simulate this time and return the share of a core that was used in it."""
        began_ns, spent_ns = self._now_ns, self._spent_ns
        while self._now_ns < began_ns + seconds * S:
            period_ns = self.limiter.period_ns
            sent = (self._now_ns + period_ns) // (10 * S) - self._now_ns // (10 * S)
            self._now_ns += period_ns
            self._spent_ns += (
                self._cost_ms(self._now_ns / S) * MS + sent * self._sent_ms * MS + self._always * period_ns
            )
            taken_bytes = self._capacity(self._now_ns / S) * period_ns / S * SNAPSHOT_BYTES
            self.backlog_bytes = max(self.backlog_bytes + SNAPSHOT_BYTES - taken_bytes, 0)
            period_ns = self.limiter.update_period(self._now_ns, int(self._spent_ns), int(self.backlog_bytes))
            assert period_ns == self.limiter.period_ns
            self.periods_ms.append(self.limiter.period_ns / MS)
        return (self._spent_ns - spent_ns) / (self._now_ns - began_ns)


def test_cost_within_the_limit_never_stretches_the_period() -> None:
    work = Work(1000, 0.02, lambda second: 90.0 if second <= 1 else 8.0, each_ten_seconds_ms=60)
    work.go_on(600)
    assert set(work.periods_ms) == {1000.0}


def test_one_snapshot_that_was_interrupted_for_long_changes_nothing() -> None:
    work = Work(1000, 0.02, lambda second: 1500.0 if 60 <= second < 61 else 2.0)
    work.go_on(300)
    assert set(work.periods_ms) == {1000.0}


def test_cost_over_the_limit_stretches_the_period_within_seconds() -> None:
    work = Work(1, 0.02, lambda _: 0.6)
    work.go_on(5)
    work.periods_ms.clear()
    assert 0.015 < work.go_on(300) <= 0.02
    assert max(work.periods_ms) <= 1.1 * min(work.periods_ms)


def test_a_little_too_much_is_stretched_a_little() -> None:
    work = Work(1000, 0.02, lambda _: 22.0)
    work.go_on(300)
    assert work.limiter.period_ns in range(1100 * MS, 1400 * MS)
    assert work.go_on(300) <= 0.02


def test_the_configured_distance_is_back_when_the_load_has_gone() -> None:
    work = Work(1, 0.02, lambda second: 0.6 if second < 60 else 0.01)
    work.go_on(60)
    assert work.limiter.is_stretched
    work.go_on(30)
    assert not work.limiter.is_stretched
    work.periods_ms.clear()
    assert work.go_on(60) <= 0.02
    assert set(work.periods_ms) == {1.0}


def test_both_rhythms_are_stretched_under_load_and_come_back() -> None:
    configured = Periods(1_000 * MS, 10 * MS)
    work = Work(1000, 0.02, lambda second: 50.0 if second < 130 else 2.0)
    work.go_on(120)
    stretched = configured.stretched(work.limiter.period_ns)
    assert stretched.all_ns > 2_500 * MS
    assert stretched.focused_ns * 100 == stretched.all_ns
    work.go_on(300)
    assert configured.stretched(work.limiter.period_ns) == configured


def test_what_the_other_side_does_not_take_in_time_stretches_the_period() -> None:
    """Without this, an overloaded exporter process seems cheap: nothing is charged for what it does not take."""
    work = Work(10, 0.02, lambda _: 0.01, capacity=lambda second: 10 if second < 1200 else 200)
    most_bytes = 0.0
    for _ in range(1200):
        work.go_on(1)
        most_bytes = max(most_bytes, work.backlog_bytes)
    assert most_bytes < 4 << 20  # the buffer's size: nothing is lost
    assert len(work.periods_ms) > 0.9 * 10 * 1200
    work.go_on(60)
    assert not work.limiter.is_stretched


def test_backlog_that_gets_smaller_stretches_nothing_more() -> None:
    limiter = OverheadLimiter(10 * MS, 0.02)
    _, first, *others, last = (limiter.update_period(second * S, 0, (30 - second) << 20) for second in range(30))
    assert 10 * MS < first < 20 * MS
    assert set(others) == {first}  # nor does it get shorter before that is small
    assert last == 10 * MS


def test_changing_load_stays_within_the_limit_on_average() -> None:
    work = Work(10, 0.02, lambda second: 3.0 if second % 40 < 20 else 0.05)
    work.go_on(60)
    assert work.go_on(1200) <= 0.02


def test_what_nothing_can_be_done_about_ends_at_a_minute() -> None:
    work = Work(10, 0.02, lambda _: 0.05, always=0.05)
    work.go_on(3600)
    assert work.limiter.period_ns == 60 * S
    longer = Work(120_000, 0.02, lambda _: 10_000.0)
    longer.go_on(3600)
    assert longer.limiter.period_ns == 120 * S


def test_distances_are_few_and_whole_milliseconds() -> None:
    work = Work(1, 0.001, lambda second: 0.01 + second / 100)
    work.go_on(3600)
    assert all(period == int(period) for period in work.periods_ms)
    assert len(set(work.periods_ms)) < 400


def test_the_cpu_time_need_not_be_read_at_each_snapshot() -> None:
    limiter = OverheadLimiter(MS, 0.02)
    assert limiter.is_due(0)
    limiter.update_period(0, 0)
    assert not limiter.is_due(S - 1)
    assert limiter.is_due(S)


def test_long_period_makes_nothing_due_between_two_snapshots() -> None:
    limiter = OverheadLimiter(10 * S, 0.02)
    limiter.update_period(0, 0)
    assert not limiter.is_due(8 * S)
    assert limiter.is_due(10 * S - MS)


def test_cpu_time_that_seems_to_go_back_harms_nothing() -> None:
    limiter = OverheadLimiter(1000 * MS, 0.02)
    for second in range(60):
        assert limiter.update_period(second * S, (60 - second) * MS) == S


@settings(max_examples=30, deadline=None)
@given(
    configured_ms=st.integers(10, 5000),
    limit=st.floats(0.001, 1.0),
    needed=st.floats(0.01, 200.0),
    always=st.floats(0.0, 0.4),
    sent=st.floats(0.0, 0.4),
)
@example(configured_ms=1, limit=0.02, needed=200.0, always=0.0, sent=0.0)
@example(configured_ms=1000, limit=0.02, needed=1.0, always=0.4, sent=0.4)
def test_in_the_long_run_the_limit_is_never_exceeded(
    configured_ms: int, limit: float, needed: float, always: float, sent: float
) -> None:
    """Scale costs by the limit: `needed` by snapshots as configured, `always` and `sent` by the rest."""
    cost_ms = min(needed * limit * configured_ms, 0.1 * limit * 60_000)
    work = Work(
        configured_ms, limit, lambda _: cost_ms, each_ten_seconds_ms=sent * limit * 10_000, always=always * limit
    )
    work.go_on(600)
    seconds = 1200
    allowance = 5 * limit + 0.1  # the maximum credit
    assert work.go_on(seconds) * seconds <= limit * seconds + allowance
