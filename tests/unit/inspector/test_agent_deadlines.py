"""Tests of absolute deadlines: no drift, no burst, a count of missed ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.inspector.agent import Deadlines


def test_the_first_instant_is_the_start() -> None:
    deadlines = Deadlines(0.5, 100.0)
    assert deadlines.next_deadline_s == 100.0
    assert deadlines.advance_if_due(100.0)
    assert not deadlines.advance_if_due(100.0)
    assert deadlines.next_deadline_s == 100.5


def test_what_comes_late_does_not_move_what_follows() -> None:
    deadlines = Deadlines(0.5, 0.0)
    for number in range(1000):
        assert deadlines.advance_if_due(number * 0.5 + 0.25)
    assert deadlines.next_deadline_s == 500.0
    assert deadlines.missed == 0


def test_deadlines_after_a_stall_come_without_a_burst_and_count_the_missed() -> None:
    deadlines = Deadlines(0.5, 0.0)
    assert deadlines.advance_if_due(0.0)
    assert deadlines.advance_if_due(3.25)
    assert deadlines.missed == 5, "those of 0.5, 1.0, 1.5, 2.0 and 2.5 s; this is the one of 3.0 s"
    assert not deadlines.advance_if_due(3.25)
    assert deadlines.next_deadline_s == 3.5


def test_nothing_is_due_before_the_start() -> None:
    deadlines = Deadlines(1.0, 10.0)
    assert not deadlines.advance_if_due(9.0)
    assert deadlines.next_deadline_s == 10.0


@given(
    st.floats(0.001, 10), st.floats(0, 1e6), st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=40)
)
def test_every_instant_is_done_or_missed_and_the_next_lies_ahead(
    period: float, start: float, steps: list[float]
) -> None:
    deadlines, now, done = Deadlines(period, start), start, 0
    for step in steps:
        now += step
        before = deadlines.next_deadline_s
        if deadlines.advance_if_due(now):
            done += 1
            assert before <= now
        assert deadlines.next_deadline_s > now
    assert deadlines.next_deadline_s == start + (done + deadlines.missed) * period
