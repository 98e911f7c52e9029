"""Profiles of real work, as a collector receives them: times add up, labels are right, memory is bounded.

What a process used, and how long its threads lived, it says itself; see `targets/accounted_work.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from received_profiles import Label, ReceivedProfile, all_samples, read
from receiver_process import Receiver
from target_process import Target, profiling_settings
from walker_marks import NATIVE

pytestmark = pytest.mark.usefixtures("shared_exporter")


def _run(
    scenario: str, walker: str, more: Mapping[str, str] | None = None, *, seconds: float = 3, interval_ms: int = 10
) -> tuple[list[ReceivedProfile], dict[str, Any]]:
    """Run a scenario to its end; (the profiles received, its ledger)."""
    settings = {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64", "SPLUNK_PROFILER_EXPORT_INTERVAL": "1000"}
    with Receiver() as receiver:
        env = {**profiling_settings(receiver.url, interval_ms, walker), **settings, **(more or {})}
        with Target("accounted_work.py", scenario, str(seconds), env=env) as target:
            ledger = target.json("ledger")
            assert target.finish() == 0, target.output
        receiver.catch_up()
        records = receiver.records(1)
    assert all(record["attributes"]["profiling.data.format"] == "pprof-gzip-base64" for record in records)
    return [read(record) for record in records], ledger


def _assert_adds_up(profiles: list[ReceivedProfile], ledger: dict[str, Any], walker: str) -> None:
    """Wall time within 1 %, or as far as the ends of threads are known.

    Within 3 % for the portable walker, which leaves threads out of a snapshot if they run meanwhile.
    """
    samples = all_samples(profiles)
    cpu_ns = [(profile.pid, sum(sample.cpu_ns for sample in profile.samples)) for profile in profiles]
    _assert_between(ledger, "cpu_ns", sum(each for _, each in cpu_ns), 0.03, cpu_ns)
    threads = ledger["ended"] if walker == "native" else ledger["started"]
    unknown = _unknown_ns(profiles, threads) / ledger["before"]["wall_ns"]
    tolerance = max(0.01 if walker == "native" else 0.03, unknown)
    _assert_between(ledger, "wall_ns", sum(sample.wall_ns for sample in samples), tolerance)


def _assert_between(ledger: dict[str, Any], what: str, found_ns: int, tolerance: float, parts: object = ()) -> None:
    """The accounts were closed somewhere in the profiler's stop, which takes a while on a machine that is busy."""
    before, after = ledger["before"][what], ledger["after"][what]
    assert before * (1 - tolerance) <= found_ns <= after * (1 + tolerance), (before, found_ns, after, parts)


def _unknown_ns(profiles: list[ReceivedProfile], threads: int) -> int:
    """Return the largest error of the wall time if so many threads have ended, or seemed to.

    A thread ends somewhere in the gap between two snapshots, and a machine that is busy makes that longer. Half of
    the gap is taken for its life: that is the largest error, and it is in the profile as unsampled time. That time
    is not trusted further than the longest gap that the samples allow.
    """
    unsampled = [sample for sample in all_samples(profiles) if sample.functions == ("[process].unsampled",)]
    longest_gap_ns = max(_longest_gap_ns(profile) for profile in profiles)
    return min(sum(sample.wall_ns for sample in unsampled), threads * longest_gap_ns // 2)


def _longest_gap_ns(profile: ReceivedProfile) -> int:
    """Return the longest possible gap in a profile: that with one period in all other gaps."""
    longest_ns: Counter[Label] = Counter()
    for sample in profile.samples:
        if "thread.os.id" in sample.labels:
            longest_ns[sample.labels["thread.os.id"]] += sample.wall_ns - sample.count * profile.period_ns
    return profile.period_ns + max(longest_ns.values(), default=0)


@pytest.mark.parametrize(
    ("scenario", "walker"),
    [
        *(pytest.param(scenario, "native", marks=NATIVE) for scenario in ("busy", "short_lived")),
        *((scenario, "portable") for scenario in ("busy", "short_lived", "tasks")),
    ],
)
def test_cpu_and_wall_times_add_up_to_those_of_process_and_threads(scenario: str, walker: str) -> None:
    _assert_adds_up(*_run(scenario, walker), walker)


@NATIVE
def test_times_add_up_however_few_samples_there_are() -> None:
    profiles, ledger = _run("busy", "native", seconds=3, interval_ms=1200)
    assert sum(sample.count for sample in all_samples(profiles)) <= 4 * 4
    _assert_adds_up(profiles, ledger, "native")


@NATIVE
@pytest.mark.parametrize("published", ["true", "false"])
def test_request_samples_have_their_local_root_and_its_final_name(published: str) -> None:
    settings = {
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": published,
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": published,
    }
    profiles, ledger = _run("tasks", "native", settings)
    _assert_adds_up(profiles, ledger, "native")
    roots = ledger["roots"]
    queries = [sample for sample in all_samples(profiles) if "__main__.query_items" in sample.functions]
    assert {sample.labels["span_id"] for sample in queries} == set(roots)
    for sample in queries:
        assert sample.labels["local_root_span_id"] == roots[str(sample.labels["span_id"])]
    names = {sample.labels["local_root_span_id"]: sample.labels["endpoint"] for sample in queries}
    assert sorted(str(name) for name in names.values()) == [f"GET /items/{number}" for number in range(10)]


@pytest.fixture(scope="module")
def calm_kib() -> int:
    """Return the memory of the process with many spans if there are next to no samples of it."""
    _, ledger = _run("many_spans", "auto", seconds=2, interval_ms=1900)
    resident_kib: int = ledger["resident_kib"]
    return resident_kib


@NATIVE
def test_10000_spans_a_second_lose_labels_but_no_time_in_bounded_memory(calm_kib: int) -> None:
    # One profile of the whole run: in a second, a machine that is busy has too few samples to fill one.
    profiles, ledger = _run("many_spans", "native", {"SPLUNK_PROFILER_EXPORT_INTERVAL": "60000"}, seconds=4)
    _assert_adds_up(profiles, ledger, "native")
    has_lost = any("fewer labels" in comment for profile in profiles for comment in profile.comments)
    is_full = sum(sample.count for sample in all_samples(profiles)) > 2 * 4096  # beside busy processes, perhaps not
    assert has_lost or not is_full
    assert max(len(profile.samples) for profile in profiles) < 4096
    assert ledger["resident_kib"] - calm_kib < 20 << 10


def test_a_forked_child_sends_profiles_of_its_own() -> None:
    profiles, ledger = _run("forking", "auto")
    child, status = ledger["child"]
    assert status == 0
    of_parent = [profile for profile in profiles if profile.pid != child]
    of_child = [profile for profile in profiles if profile.pid == child]
    for profiles_of_one in (of_parent, of_child):
        samples = all_samples(profiles_of_one)
        assert any("__main__.compute" in sample.functions for sample in samples)
    _assert_between(ledger, "cpu_ns", sum(sample.cpu_ns for sample in all_samples(of_parent)), 0.03)


def test_a_child_of_a_process_that_sends_text_may_send_profiles() -> None:
    with Receiver() as receiver:
        with Target("accounted_work.py", "changing", "1", env=profiling_settings(receiver.url, 10)) as target:
            child, status = target.json("ledger")["child"]
            assert (status, target.finish()) == (0, 0), target.output
        receiver.catch_up()
        records = receiver.records(2)
    formats = {(record["resource"]["process.pid"], record["attributes"]["profiling.data.format"]) for record in records}
    assert (child, "pprof-gzip-base64") in formats
    assert {data_format for pid, data_format in formats if pid != child} == {"text"}
