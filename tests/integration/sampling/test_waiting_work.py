"""Waits of a real process, as a collector receives them: for the GIL, for locks, and of blocked event loops."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
from received_profiles import ReceivedProfile, all_samples, read
from receiver_process import Receiver
from target_process import Target, profiling_settings
from walker_marks import BOTH_WALKERS, NATIVE

from splunk_profiler.pipeline.gil_waits import GilWaits, parse

pytestmark = pytest.mark.usefixtures("shared_exporter")


def _run(scenario: str, walker: str, interval_ms: int = 10) -> tuple[list[ReceivedProfile], str]:
    """Run a scenario to its end and return the profiles received, and the output."""
    settings = {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64", "SPLUNK_PROFILER_EXPORT_INTERVAL": "500"}
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url, interval_ms, walker), **settings}
        with Target("waiting_work.py", scenario, env=env) as target:
            target.line("stopped")
            assert target.finish() == 0, target.output
        return [read(record) for record in receiver.records(1)], target.output


@BOTH_WALKERS
def test_gil_held_by_c_code_shows_as_waits_of_its_length(walker: str) -> None:
    profiles, _ = _run("hold_gil", walker)
    waits = GilWaits()
    for profile in profiles:
        for comment in profile.comments:
            waits = waits.plus(parse(comment))
    assert waits.long_count >= 7, "one snapshot waits each time"
    assert waits.max_ns > 100_000_000
    assert waits.sum_ns > 7 * 90_000_000


@NATIVE
@pytest.mark.parametrize(("loop", "interval_ms"), [("asyncio", 1000), ("uvloop", 10)])
def test_callback_that_blocks_its_loop_is_an_event_with_stack_and_span(loop: str, interval_ms: int) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed for this interpreter")
    profiles, output = _run(f"block_{loop}", "native", interval_ms)
    ledger = json.loads(next(line for line in output.splitlines() if line.startswith("blocked")).partition(" ")[2])
    samples = [sample for sample in all_samples(profiles) if sample.labels.get("source.event.name") == "loop_blocked"]
    blocked = [sample for sample in samples if {"__main__.block", "__main__.block_in_c"} & {*sample.functions}]
    assert {sample.labels["span_id"] for sample in blocked} == set(ledger["spans"])
    assert {sample.labels["endpoint"] for sample in blocked} == {"GET /report"}
    assert sum(sample.loop_blocks for sample in blocked) == 4
    assert {sample.labels.get("task.name") for sample in blocked} == {"serve", "nightly report"}
    # From a look at most 35 ms after a block began to one at most 35 ms before it ended; the span's own work counts.
    assert 0.7 * ledger["ns"] < sum(sample.loop_blocked_ns for sample in blocked) <= ledger["ns"] + 40_000_000
    assert all(sample.count == sample.wall_ns == sample.cpu_ns == 0 for sample in samples)
    others_ns = sum(sample.loop_blocked_ns for sample in samples if sample not in blocked)
    assert others_ns < 500_000_000, "short steps of one task keep the loop busy, but do not block it"


@NATIVE
def test_threads_that_take_turns_wait_for_the_gil_from_3_15_on() -> None:
    profiles, _ = _run("take_turns", "native")
    waited: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for sample in all_samples(profiles):
        thread = str(sample.labels.get("thread.name"))
        spent[thread] += sample.wall_ns
        if sample.labels.get("wait.kind") == "gil":
            assert sample.labels["thread.state"] == "WAITING"
            waited[thread] += sample.wall_ns
    workers = [f"worker {number}" for number in range(3)]
    if sys.version_info < (3, 15):
        assert not waited, "CPython does not tell"
        return
    # One has it, and some of the others, woken for it, wait for a processor.
    assert sum(waited[worker] for worker in workers) > 0.25 * sum(spent[worker] for worker in workers)
    assert all(waited[worker] for worker in workers)
    assert waited["sleeper"] < 0.5 * spent["sleeper"]


@BOTH_WALKERS
def test_waits_for_locks_are_labelled_by_kind_and_idle_threads_apart(walker: str) -> None:
    profiles, _ = _run("wait_for_locks", walker)
    waited: Counter[tuple[str, str]] = Counter()
    for sample in all_samples(profiles):
        if "wait.kind" in sample.labels:
            waited[str(sample.labels["thread.name"]), str(sample.labels["wait.kind"])] += sample.wall_ns
    long = {key for key, wall_ns in waited.items() if wall_ns > 600_000_000}
    assert {
        ("enter", "lock"),
        ("acquire", "lock"),
        ("take_change", "condition"),
        ("take_work", "idle"),
        ("take_letter", "queue"),
        ("take_parcel", "queue"),
        ("see_paid", "future"),
        ("pool_0", "idle"),
    } <= long
    assert not {kind for name, kind in long if name == "enter"} - {"lock"}
    held = [sample for sample in all_samples(profiles) if sample.labels.get("source.event.name") == "lock_held"]
    if walker == "portable" or sys.version_info < (3, 11):
        assert not held, "they do not know the holder"
        return
    assert all("__main__.wait_for_locks" in sample.functions for sample in held)
    assert {sample.labels["thread.name"] for sample in held} == {"MainThread"}
    assert 600_000_000 < sum(sample.lock_delay_ns for sample in held) < 1_500_000_000, "only one waits by `with`"
    assert all(sample.count == sample.wall_ns == sample.cpu_ns == 0 < sample.lock_waiters for sample in held)
