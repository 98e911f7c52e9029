"""Raised exceptions in profiles of real processes, as a collector receives them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import pytest
from ledger_run import run_target
from received_profiles import ProfileSample, ReceivedProfile, all_samples, read

from splunk_profiler.capture.walker import choose_walker

CARD = "4111-1111-1111-1111"
OURS = "splunk-profiler"
_recorded = pytest.mark.skipif(
    not hasattr(sys, "monitoring") or choose_walker("native").name != "native",
    reason="exceptions are not recorded here",
)


def _run(scenario: str, **more: str) -> tuple[list[ReceivedProfile], Any, str]:
    """Run a scenario to its end; (the profiles received, its ledger, its output)."""
    settings = {
        "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "1000",
        "SPLUNK_PROFILER_EXCEPTIONS_ENABLED": "true",
    }
    records, ledger, output = run_target("raising_work.py", scenario, **{**settings, **more})
    assert CARD not in json.dumps(records)
    is_on = settings.items() <= {**settings, **more}.items()
    return [read(record) for record in records] if is_on else [], ledger, output


def _raised(profiles: list[ReceivedProfile], name: str) -> list[ProfileSample]:
    samples = all_samples(profiles)
    assert all(sample.count == sample.wall_ns == sample.cpu_ns == 0 for sample in samples if sample.exceptions)
    return [sample for sample in samples if sample.labels.get("exception.type") == name]


def _number(profiles: list[ReceivedProfile], name: str) -> int:
    return sum(sample.exceptions for sample in _raised(profiles, name))


@_recorded
def test_exceptions_are_counted_by_type_place_span_and_labels() -> None:
    profiles, ledger, _ = _run("service")
    counted: Counter[tuple[str, str]] = Counter()
    for name in ("__main__.OrderError", "KeyError", "ValueError"):
        for sample in _raised(profiles, name):
            counted[name, sample.functions[0]] += sample.exceptions
            assert sample.labels["source.event.name"] == "exception"
    assert counted["__main__.OrderError", "__main__.order"] == 20
    assert counted["KeyError", "__main__.look_up"] == 10
    assert counted["ValueError", "__main__.parse"] == 5
    for sample in _raised(profiles, "__main__.OrderError"):
        names = ("span_id", "endpoint", "tenant", "thread.name")
        assert [sample.labels.get(name) for name in names] == [ledger["span"], "POST /order", "acme", "shop"]
    assert ledger["during"].count(OURS) == 1
    assert ledger["after"].count(OURS) == 0


@_recorded
def test_forked_child_and_its_parent_record_their_own_exceptions() -> None:
    profiles, ledger, _ = _run("forking")
    assert ledger["status"] == 0
    of_child = [profile for profile in profiles if profile.pid == ledger["child"]]
    of_parent = [profile for profile in profiles if profile.pid != ledger["child"]]
    assert (_number(of_child, "__main__.ChildError"), _number(of_child, "__main__.OrderError")) == (7, 0)
    assert (_number(of_parent, "__main__.ChildError"), _number(of_parent, "__main__.OrderError")) == (0, 10)


@_recorded
def test_signal_handlers_in_a_storm_of_exceptions_are_not_disturbed() -> None:
    profiles, ledger, _ = _run("signals")
    assert ledger["handled"] >= 500
    assert _number(profiles, "__main__.OrderError") == pytest.approx(ledger["raised"], rel=0.6)


@_recorded
def test_exceptions_where_memory_runs_out_stay_what_they_are() -> None:
    profiles, ledger, _ = _run("memory", SPLUNK_PROFILER_EXPORTER="thread")
    assert ledger["caught"] == 80
    filling = [sample for sample in _raised(profiles, "MemoryError") if "__main__.memory" in sample.functions]
    assert filling  # in greater numbers, if others could not be kept: these stand for them


@_recorded
def test_profiler_starts_and_stops_while_threads_raise() -> None:
    _, ledger, _ = _run("restarting", SPLUNK_PROFILER_EXPORTER="thread")
    assert ledger["restarts"] >= 2
    assert ledger["after"].count(OURS) == 0


@_recorded
def test_exceptions_of_another_interpreter_are_left_alone() -> None:
    profiles, ledger, _ = _run("interpreters")
    assert ledger["failed"] == "None"
    assert _number(profiles, "__main__.OrderError") == 5
    assert not any("__main__.<module>" in sample.functions[:1] for sample in _raised(profiles, "ValueError"))


@_recorded
@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("SPLUNK_PROFILER_EXCEPTIONS_ENABLED", "false", ""),
        ("SPLUNK_PROFILER_DATA_FORMAT", "text", "no effect without SPLUNK_PROFILER_DATA_FORMAT=pprof-gzip-base64"),
        ("SPLUNK_PROFILER_WALKER", "portable", "the portable walker does not record them"),
    ],
)
def test_no_tool_id_is_taken_where_nothing_is_recorded(setting: str, value: str, said: str) -> None:
    _, ledger, output = _run("service", **{setting: value})
    assert OURS not in ledger["during"]
    assert output.count("EXCEPTIONS_ENABLED") + output.count("raised exceptions are not sampled") == bool(said)
    assert said in output


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="CPython 3.12 and newer record them")
def test_older_interpreter_says_once_that_it_records_none() -> None:
    profiles, _, output = _run("service")
    assert output.count("raised exceptions are not sampled: that takes CPython 3.12 or newer") == 1
    assert not any(sample.exceptions for sample in all_samples(profiles))
