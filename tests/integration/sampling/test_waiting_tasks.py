"""Suspended asyncio tasks in profiles of real processes, as a collector receives them."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from ledger_run import run_target
from received_profiles import ProfileSample, ReceivedProfile, all_samples, read
from walker_marks import NATIVE

SECONDS = 4.3
_ALIKE = "__main__.many.<locals>.wait_alike"
_LONG_NAME = "first\\n" + 122 * "x"  # as it is cut and written

pytestmark = NATIVE


def _run(scenario: str, *more: str, seconds: float = SECONDS, **settings: str) -> tuple[list[ReceivedProfile], Any]:
    """Run a scenario to its end; (the profiles received, its ledger)."""
    settings |= {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64", "SPLUNK_PROFILER_EXPORT_INTERVAL": "1000"}
    run = run_target("waiting_tasks.py", scenario, str(seconds), *more, **settings)
    return [read(record) for record in run.records], run.ledger


def _tasks(profiles: list[ReceivedProfile]) -> list[ProfileSample]:
    found = [sample for sample in all_samples(profiles) if sample.labels.get("source.event.name") == "task"]
    assert all(sample.count == sample.wall_ns == sample.cpu_ns == 0 for sample in found)
    assert all(sample.labels["thread.state"] == "waiting task" for sample in found)
    return found


def _number_of(sample: ProfileSample) -> int | None:
    """Return the number in the name of the waiting function."""
    marks = [name for name in sample.functions if name.startswith("__main__.wait_in_span_")]
    return int(marks[0][-2:]) if marks else None


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_waiting_tasks_have_each_their_own_span_and_all_the_time(loop: str) -> None:
    profiles, ledger = _run("kinds", loop)
    waits: Counter[int] = Counter()
    for sample in _tasks(profiles):
        number = _number_of(sample)
        if number is None:
            assert "span_id" not in sample.labels
            continue
        assert ledger["spans"][sample.labels["span_id"]]["name"] == f"span_{number:02}"
        assert sample.labels["number"] == str(number)
        assert sample.labels["thread.name"] == ("other-loop" if number == 9 else "MainThread")
        name = {0: _LONG_NAME, 6: "__main__.task", 9: _LONG_NAME}.get(number)  # anyio names its tasks
        assert sample.labels.get("task.name") == name
        parents = {"__main__.gathering", "__main__.grouping"} & {*sample.functions}
        expected = number in (2, 3, 4, 5) if sys.version_info >= (3, 14) else number == 5
        assert bool(parents) == expected
        waits[number] += sample.task_wait_ns
    assert sorted(waits) == ledger["waiting"]
    for number, wait_ns in waits.items():
        waited_ns = ledger["seconds"]["other-loop" if number == 9 else "MainThread"] * 1e9
        assert 0.65 * waited_ns < wait_ns < waited_ns + 100_000_000


def test_ten_thousand_tasks_are_sampled_and_counted_as_all() -> None:
    profiles, ledger = _run("many", SPLUNK_PROFILER_MAX_TASKS="16")
    found = [[each for each in _tasks([profile]) if _ALIKE in each.functions] for profile in profiles]
    begun = [sample for samples in found for sample in samples if "__main__._wait" in sample.functions]
    assert 0 < len(begun) <= len(profiles)
    average = sum(sample.task_wait_ns for samples in found for sample in samples) / ledger["seconds"] / 1e9
    assert 0.6 * ledger["tasks"] < average < 1.1 * ledger["tasks"]
    counts = [sum(sample.tasks for sample in samples) for samples in found if samples]
    many = ledger["tasks"]
    whole = [count == pytest.approx(many * round(count / many), rel=0.1) for count in counts]
    assert any(whole)
    assert all(whole[1:-1]), "the first and the last one may see tasks that begin or end"


def test_a_forked_child_has_the_tasks_of_its_own_loop_only() -> None:
    profiles, ledger = _run("forking", seconds=2.5, SPLUNK_PROFILER_EXPORTER="thread")
    pids = {profile.pid for profile in profiles}
    assert len(pids) == 2
    assert ledger["child"] in pids
    for pid in pids:
        found = {_number_of(sample) for sample in _tasks([each for each in profiles if each.pid == pid])} - {None}
        assert found == ({20} if pid == ledger["child"] else {0, 1, 2, 3, 4})
