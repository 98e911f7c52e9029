"""Collections of garbage and the user's labels in profiles of real processes, as a collector receives them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from ledger_run import run_target
from received_profiles import ProfileSample, ReceivedProfile, all_samples, read
from walker_marks import BOTH_EXPORTERS, BOTH_WALKERS


def _run(scenario: str, walker: str, *, seconds: float = 1.5, **more: str) -> tuple[list[ReceivedProfile], Any]:
    """Run a scenario to its end; (the profiles received, its ledger)."""
    settings = {
        "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "1000",
        "SPLUNK_PROFILER_GC_EVENTS_ENABLED": "true",
    }
    run = run_target("garbage_work.py", scenario, str(seconds), walker=walker, **{**settings, **more})
    return [read(record) for record in run.records], run.ledger


def _collections(profiles: list[ReceivedProfile]) -> list[ProfileSample]:
    found = [sample for sample in all_samples(profiles) if sample.labels.get("source.event.name") == "gc"]
    assert all(sample.count == sample.wall_ns == sample.cpu_ns == 0 for sample in found)
    return found


@BOTH_EXPORTERS
def test_collections_are_recorded_where_they_run_and_counted_once(walker: str, exporter: str) -> None:
    profiles, ledger = _run("two_threads", walker, SPLUNK_PROFILER_EXPORTER=exporter)
    collections = _collections(profiles)
    counted: Counter[str] = Counter()
    for sample in collections:
        counted[str(sample.labels["gc.generation"])] += sample.collections
        assert sample.gc_ns > 0
    # Those of the last 10 ms are in no sample, and some come after the ledger was closed.
    assert counted["0"] + counted["1"] == pytest.approx(sum(ledger["collections"][:2]), rel=0.1)
    assert counted["2"] == pytest.approx(ledger["collections"][2], abs=3)
    shopping = [sample for sample in collections if "__main__.leave_garbage" in sample.functions]
    assert shopping
    for sample in shopping:
        labels = {
            name: sample.labels.get(name) for name in ("span_id", "endpoint", "tenant", "user.endpoint", "thread.name")
        }
        assert labels == {
            "span_id": ledger["span"],
            "endpoint": "GET /basket",
            "tenant": "acme",
            "user.endpoint": "mine",
            "thread.name": "shop",
        }
    assert any("__main__.collect_all" in sample.functions for sample in collections)
    samples = all_samples(profiles)
    least_ns, most_ns = ledger["cpu_ns"]
    assert 0.97 * least_ns <= sum(sample.cpu_ns for sample in samples) <= 1.03 * most_ns
    assert all(sample.collections == sample.gc_ns == 0 for sample in samples if sample not in collections)
    assert ledger["callbacks"] == [1, 0]


@BOTH_EXPORTERS
def test_tasks_of_one_thread_have_each_their_own_labels(walker: str, exporter: str) -> None:
    profiles, _ = _run("tasks", walker, SPLUNK_PROFILER_EXPORTER=exporter)
    working = [sample for sample in all_samples(profiles) if "__main__.compute" in sample.functions]
    alone = [sample for sample in working if "__main__.compute_alone" in sample.functions]
    assert alone
    assert all("request" not in sample.labels for sample in alone)
    others = Counter(str(sample.labels["request"]) for sample in working if sample not in alone)
    assert others.keys() == {"0", "1", "2", "3"}


@BOTH_WALKERS
def test_a_forked_child_notices_its_own_collections_once(walker: str) -> None:
    profiles, ledger = _run("forking", walker, seconds=0.8)
    assert (ledger["status"], ledger["callbacks"]) == (0, [1, 0])
    of_child = _collections([profile for profile in profiles if profile.pid == ledger["child"]])
    assert any("__main__.leave_garbage" in sample.functions for sample in of_child)


def test_no_callback_notices_collections_where_text_is_sent() -> None:
    run = run_target("garbage_work.py", "two_threads", "0.1", SPLUNK_PROFILER_GC_EVENTS_ENABLED="true")
    assert run.ledger["callbacks"] == [0, 0]
