"""Counts samples whose span is not the one whose function is on the stack: there must be none.

Scenarios run one after the other in a process under real load; at least 500 samples of each are compared with the
ledger of spans that the process itself kept. See `targets/association.py`.
"""

from __future__ import annotations

import math
import re
import sys
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from receiver_process import Receiver
from target_process import Target, profiling_settings
from walker_marks import BOTH_WALKERS, NATIVE

pytestmark = pytest.mark.usefixtures("shared_exporter")
_SAMPLES = 500
_MARK = re.compile(r"\.(?:work_in_(span_\d\d)|work_outside_spans)\(")


def _is_marked(record: dict[str, Any]) -> bool:
    return _MARK.search(record["body"]) is not None


def _run(walker: str, *scenarios: str) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Run each scenario until enough samples have arrived, some of them in spans; (marked records, ledger)."""
    with Receiver() as receiver:
        starts_ns: list[int] = []
        with Target("association.py", *scenarios, env=profiling_settings(receiver.url, 1, walker)) as target:
            receiver.record()  # the load would take processors from the exporter that starts
            for number in range(1, len(scenarios) + 1):
                target.tell("start")
                starts_ns.append(int(target.lines(number, "ready")[-1]))
                receiver.records(_SAMPLES, lambda record: _is_marked(record) and record["time_ns"] >= starts_ns[-1])
                receiver.record(lambda record: record["span_id"] and record["time_ns"] >= starts_ns[-1])
                target.tell("stop")
            ledger = target.json("ledger")
            assert target.finish() == 0, target.output
            assert "splunk_profiler" not in target.output, target.output
        records = receiver.records(_SAMPLES, _is_marked)
    return [
        [record for record in records if start_ns <= record["time_ns"] < end_ns]
        for start_ns, end_ns in pairwise([0, *starts_ns[1:], math.inf])
    ], ledger


def _wrong(records: list[dict[str, Any]], ledger: dict[str, Any]) -> list[str]:
    """The samples that are not in the span (or outside of spans) that their leaf-most mark says."""
    found = []
    for record in records:
        mark = _MARK.search(record["body"])
        assert mark is not None
        ids = (record["trace_id"], record["span_id"], record["flags"] & 0xFF)
        span = ledger["spans"].get(record["span_id"])
        right = ids == ("", "", 0)
        if mark[1]:
            right = span is not None and ids[0] == span["trace_id"] and ids[2] == span["flags"]
            right = right and span["name"] == mark[1]
        if not right:
            found.append(f"{mark[0]} has {ids} of {span}\n{record['body']}")
    return found


def _assert_exact(walker: str, *scenarios: str) -> dict[str, Any]:
    runs, ledger = _run(walker, *scenarios)
    for scenario, records in zip(scenarios, runs, strict=True):
        wrong = _wrong(records, ledger)
        assert not wrong, f"{scenario}: {len(wrong)} of {len(records)} have the wrong span, such as: {wrong[0]}"
        inside = sum(1 for record in records if record["span_id"])
        assert 0 < inside < len(records), f"{scenario}: no sample in or outside of spans: nothing was compared"
    return ledger


@BOTH_WALKERS
def test_every_sample_of_threads_is_in_the_span_that_its_function_runs_in(walker: str) -> None:
    ledger = _assert_exact(walker, "reused_idents", "threads", "by_hand", "pool", "generators")
    assert ledger["reused"] > 0, "no ident was used again: nothing was tested"


@BOTH_WALKERS
def test_unsampled_spans_are_carried_with_flags_that_say_so(walker: str) -> None:
    (records,), ledger = _run(walker, "unsampled")
    assert not _wrong(records, ledger)
    assert {record["flags"] & 1 for record in records} == {0, 1}


@NATIVE
def test_every_sample_of_a_task_is_in_the_span_of_that_task() -> None:
    _assert_exact("native", "asyncio_tasks", "to_thread", "context_run")


def test_a_sample_of_a_task_is_in_no_other_span_with_the_portable_walker() -> None:
    (records,), ledger = _run("portable", "asyncio_tasks")
    may_miss = sys.version_info < (3, 12)  # there it cannot see what a task has inherited
    named = [record for record in records if record["span_id"] or not may_miss]
    assert any(record["span_id"] for record in named)
    assert not _wrong(named, ledger)


@NATIVE
@pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not there for this interpreter")
def test_every_sample_of_a_task_on_uvloop_is_in_the_span_of_that_task() -> None:
    assert _assert_exact("native", "uvloop_tasks")["loop"].startswith("uvloop")


@NATIVE
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with CPython 3.12")
def test_every_sample_of_an_eager_task_is_in_the_span_of_that_task() -> None:
    _assert_exact("native", "eager_tasks")


@BOTH_WALKERS
@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not there for this interpreter")
def test_every_sample_of_a_greenlet_is_in_the_span_of_that_greenlet(walker: str) -> None:
    assert _assert_exact(walker, "greenlets")["patched"]
