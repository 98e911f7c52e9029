"""Readings of a host profiler from a process that switches spans as fast as it can: always one whole, right span.

Each scenario of `targets/span_switching.py` runs as a process of its own. The inspector stops its threads again and
again and reads, in the same stop, the published values and the marks of the work (`host_reading.py`).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest
from host_reading import Judge, JudgeOfIds
from publishing_target import publishing_target
from table_reader import TableReader

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

pytestmark = pytest.mark.usefixtures("high_priority")

_SINGLE_THREAD_SCENARIOS = {"asyncio_tasks", "uvloop_tasks", "eager_tasks", "greenlets"}
_MIN_READINGS_OF_KIND = 50
_TURNS_UNTIL_ALL = 20


def _judge_readings(scenario: str, reads: int) -> dict[str, Any]:
    """Judge that many readings, half of them with the limits of real host profilers; what the target has counted."""
    judge = JudgeOfIds() if scenario == "contexts" else Judge()
    turns = count()
    with publishing_target("span_switching.py", scenario) as target:
        address = int(target.line("ready"))
        for strict_host, min_readings in ((False, reads // 2), (True, reads)):
            with TableReader(target.pid, address, strict_host=strict_host) as reader:
                while not _has_enough_readings(judge, min_readings):
                    # Others than those that have been seen at work are looked for now and then.
                    is_complete = scenario in _SINGLE_THREAD_SCENARIOS or next(turns) % _TURNS_UNTIL_ALL
                    for reading, table in reader.sample(judge.tids if is_complete else ()):
                        judge.judge(reading, table)
                    assert not judge.wrong, f"after {judge.judged} readings: {judge.wrong[0]}"
        target.tell("stop")
        counted = target.json("done")
        assert target.finish() == 0
        assert "splunk_profiler" not in target.output, target.output
    print(scenario, dict(judge.seen), counted)
    assert counted["repaired"] == 0, "a switch of context was not seen"
    assert counted["failed"] == 0
    assert counted["compared"] > 0
    return dict(counted)


def _has_enough_readings(judge: Judge, min_readings: int) -> bool:
    """Return True once there are that many readings, and some of each kind."""
    assert judge.seen.total() < 100 * min_readings, f"it is nearly always the same: {dict(judge.seen)}"
    return judge.judged >= min_readings and min(judge.seen["inside"], judge.seen["outside"]) >= _MIN_READINGS_OF_KIND


@pytest.mark.parametrize(
    ("scenario", "reads"),
    [
        ("threads", 3000),
        ("generators", 1000),
        ("contexts", 500),
        ("executors", 500),
        ("asyncio_tasks", 1200),
        ("to_thread", 500),
    ],
)
def test_every_reading_is_of_the_span_that_the_thread_is_in(scenario: str, reads: int) -> None:
    _judge_readings(scenario, reads)


@pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not there for this interpreter")
def test_every_reading_of_tasks_on_uvloop_is_of_the_span_of_the_task() -> None:
    assert _judge_readings("uvloop_tasks", 1200)["loop"].startswith("uvloop")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with CPython 3.12")
def test_every_reading_of_eager_tasks_is_of_the_span_of_the_task() -> None:
    _judge_readings("eager_tasks", 1500)


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not there for this interpreter")
def test_every_reading_of_greenlets_is_of_the_span_of_the_greenlet() -> None:
    assert _judge_readings("greenlets", 1000)["patched"]
