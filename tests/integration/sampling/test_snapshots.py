"""Snapshot profiling of real processes, as a collector receives it; see `targets/snapshot_service.py`."""

from __future__ import annotations

from typing import Any

import pytest
from received_profiles import ProfileSample, all_samples, read
from receiver_process import Receiver, Record
from target_process import Target, profiling_settings
from walker_marks import BOTH_EXPORTERS, BOTH_WALKERS, NATIVE

SOURCE = "profiling.instrumentation.source"
MS = 1_000_000
pytestmark = pytest.mark.usefixtures("shared_exporter")


def _run(
    scenario: str, walker: str, *, program: tuple[str, ...] = ("snapshot_service.py",), **more: str
) -> tuple[list[Record], dict[str, Any]]:
    """Run a scenario to its end; (the records received, its ledger)."""
    settings = {"SPLUNK_SNAPSHOT_PROFILER_ENABLED": "true", "SPLUNK_SNAPSHOT_SELECTION_PROBABILITY": "0.5", **more}
    with Receiver() as receiver:
        with Target(
            program[0], scenario, *program[1:], env={**profiling_settings(receiver.url, 50, walker), **settings}
        ) as target:
            ledger = target.json("ledger")
            assert target.finish() == 0, target.output
        return receiver.records(), ledger


def _of(records: list[Record], source: str) -> list[ProfileSample]:
    return all_samples([read(record) for record in records if record["attributes"][SOURCE] == source])


def _functions(samples: list[ProfileSample]) -> set[str]:
    ours = {function for sample in samples for function in sample.functions}
    return {function.removeprefix("__main__.") for function in ours if function.endswith("_work")}


@BOTH_EXPORTERS
def test_threads_of_selected_traces_are_sampled_often_and_all_rarely(walker: str, exporter: str) -> None:
    records, ledger = _run(
        *("threads", walker), SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64", SPLUNK_PROFILER_EXPORTER=exporter
    )
    closely, continuous = _of(records, "snapshot"), _of(records, "continuous")
    request = ledger["selected"]
    assert ledger["marked"] == ["selected"]
    assert {sample.labels["trace_id"] for sample in closely} == {request["trace_id"]}
    ticks = [sample for sample in continuous if sample.labels.get("source.event.name") != "gc"]
    # A tick that comes late stands for those before it.
    assert min(sample.labels["source.event.period"] for sample in closely) == 10
    assert min(sample.labels["source.event.period"] for sample in ticks) == 50
    # The portable walker cannot see the context that the pool's thread runs in.
    assert _functions(closely) == {"selected_work"} | ({"helping_work"} if walker == "native" else set())
    assert _functions(continuous) == {"selected_work", "helping_work", "other_work", "untraced_work"}
    own = [sample for sample in closely if "selected" in str(sample.labels["thread.name"])]
    assert 0 < sum(sample.wall_ns for sample in own) <= request["wall_ns"] + 10 * MS
    assert 0 < sum(sample.cpu_ns for sample in own) <= request["cpu_ns"] + 10 * MS
    seen_at_leisure = sum(sample.count for sample in continuous if "__main__.selected_work" in sample.functions)
    assert sum(sample.count for sample in own) > seen_at_leisure


@NATIVE
def test_of_the_tasks_of_one_loop_only_the_selected_one_is_sampled() -> None:
    records, ledger = _run("tasks", "native", SPLUNK_PROFILER_CALL_STACK_INTERVAL="1000")
    closely = [record for record in records if record["attributes"].get(SOURCE) == "snapshot"]
    assert {record["trace_id"] for record in closely} == {ledger["selected"]["trace_id"]}
    assert any("selected_step" in record["body"] for record in closely)
    assert not any("other_step" in record["body"] for record in closely)
    assert {record["attributes"]["source.event.period"] for record in closely} == {10}
    assert ledger["marked"] == ["selected"]


@NATIVE
def test_the_cpu_times_of_all_threads_profiles_add_up_beside_it() -> None:
    settings = {
        "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
        "SPLUNK_SNAPSHOT_SELECTION_PROBABILITY": "1",
    }
    records, ledger = _run("tasks", "native", program=("accounted_work.py", "2"), **settings)
    continuous = _of(records, "continuous")
    used_ns = sum(sample.cpu_ns for sample in continuous)
    assert ledger["before"]["cpu_ns"] * 0.97 <= used_ns <= ledger["after"]["cpu_ns"] * 1.03
    assert _of(records, "snapshot")


@BOTH_WALKERS
def test_it_works_alone_and_with_no_thread_more_than_the_profiler(walker: str) -> None:
    records, ledger = _run("again", walker, SPLUNK_PROFILER_ENABLED="")
    assert {record["attributes"][SOURCE] for record in records} == {"snapshot"}
    assert {record["trace_id"] for record in records} == {ledger["selected"]["trace_id"]}
    computing = [record["body"] for record in records if "compute" in record["body"]]
    assert computing
    assert all("selected_work" in body for body in computing)
    roles = ["sampler", "ticker"] if walker == "native" else ["exporter", "sampler", "sigterm", "ticker"]
    assert ledger["own"] == [f"splunk-profiler-{role}" for role in roles]


@BOTH_WALKERS
def test_a_forked_child_goes_on_with_traces_of_its_own(walker: str) -> None:
    records, ledger = _run("forking", walker, SPLUNK_PROFILER_ENABLED="")
    child, status = ledger["child"]
    assert status == 0
    of_child = [record for record in records if record["resource"]["process.pid"] == child]
    of_parent = [record for record in records if record["resource"]["process.pid"] != child]
    assert {record["trace_id"] for record in of_parent} == {ledger["selected"]["trace_id"]}
    assert len({record["trace_id"] for record in of_child} - {ledger["selected"]["trace_id"]}) == 1
    assert ledger["selected"]["trace_id"] not in {record["trace_id"] for record in of_child}


@pytest.mark.parametrize(("probability", "marked"), [("0", []), ("1", ["other", "selected"])])
def test_none_or_all_of_the_traces_can_be_selected(probability: str, marked: list[str]) -> None:
    records, ledger = _run(
        "threads", "auto", SPLUNK_PROFILER_ENABLED="", SPLUNK_SNAPSHOT_SELECTION_PROBABILITY=probability
    )
    assert sorted(ledger["marked"]) == marked
    assert {record["trace_id"] for record in records} == {ledger[name]["trace_id"] for name in marked}
