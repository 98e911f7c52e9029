"""The sums of what blocked event loops, as far as profiles say it."""

from __future__ import annotations

from collections.abc import Sequence

from splunk_profiler.capture.events.blocked_loops import LOOP_BLOCKED as KIND
from splunk_profiler.exporter_process.loop_blockers import LOOP_BLOCKED, LoopBlocker, LoopBlockers
from splunk_profiler.model import Frame, Stack
from splunk_profiler.samples import Aggregate, Profile

_LIBRARY = Frame("time", "sleep", "/usr/lib/python3.11/time.py", 1)
_GENERATED = Frame("shop", "__init__", "<string>", 1)


def _own(function: str) -> Frame:
    return Frame("shop.views", function, "/srv/shop/views.py", 7)


def _block(frames: Sequence[Frame], count: int, blocked_ns: int, **labels: str) -> Aggregate:
    pairs = tuple((name.replace("_", "."), value) for name, value in labels.items())
    return Aggregate(Stack(tuple(frames), False), pairs, 0, 0, 0, KIND, count, blocked_ns)


def _profile(*aggregates: Aggregate) -> Profile:
    return Profile(0, 1, 1, aggregates)


def test_kind_of_events_has_the_name_that_is_looked_for() -> None:
    assert KIND.name == LOOP_BLOCKED


def test_blocks_are_summed_by_own_function_task_and_endpoint() -> None:
    blockers = LoopBlockers()
    frames = [_LIBRARY, _GENERATED, _own("render"), _own("handle")]
    other = Aggregate(Stack((_own("render"),), False), (), 5, 9, 9)
    blockers.add((_profile(_block(frames, 1, 100, task_name="invoice", endpoint="GET /"), other),))
    blockers.add((_profile(_block(frames, 2, 200, task_name="invoice", endpoint="GET /")),))
    blockers.add((_profile(_block([_LIBRARY], 1, 900)),))
    assert blockers.worst() == [
        LoopBlocker("time.sleep", "", "", 1, 900),
        LoopBlocker("shop.views.render", "invoice", "GET /", 3, 300),
    ]


def test_largest_are_kept_where_there_are_more_than_are_kept() -> None:
    blockers = LoopBlockers()
    large = [_block([_own(f"large_{number}")], 1, 1000 - number) for number in range(10)]
    blockers.add((_profile(*large, *(_block([_own(f"small_{number}")], 1, 1) for number in range(2_000))),))
    late = _block([_own("late")], 1, 5000)
    blockers.add((_profile(late),))
    assert [each.function.rpartition(".")[2] for each in blockers.worst()] == [
        "late",
        *(f"large_{number}" for number in range(9)),
    ]


def test_long_names_are_cut_short() -> None:
    blockers = LoopBlockers()
    blockers.add((_profile(_block([_own("f" * 10_000)], 1, 1, endpoint="e" * 10_000)),))
    (worst,) = blockers.worst()
    assert (len(worst.function), len(worst.endpoint)) == (200, 200)
