"""Allocations and the live heap of real processes, as a collector receives them."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, collect_program, splunk_profiler
from ledger_run import run_target
from profile_schema import decode
from target_process import Target

if find_spec("splunk_profiler._walker") is None:
    pytest.skip("the native walker is not built for this interpreter", allow_module_level=True)

_SETTINGS = {
    "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
    "SPLUNK_PROFILER_EXPORT_INTERVAL": "60000",
    "SPLUNK_PROFILER_MEMORY_ENABLED": "true",
    "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": "50000",
    "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
}


@dataclass(frozen=True)
class Allocated:
    """One sample of a profile of allocations: functions leaf first, values by name, labels."""

    functions: tuple[str, ...]
    values: dict[str, int]
    labels: dict[str, str]
    pid: int


def _run(scenario: str, **more: str) -> tuple[list[dict[str, Any]], Any]:
    """Run a scenario to its end; (the records received, its ledger)."""
    records, ledger, _ = run_target("allocating_work.py", scenario, **{**_SETTINGS, **more})
    return records, ledger


def _read(records: list[dict[str, Any]]) -> list[Allocated]:
    """Return the samples of all profiles of allocations."""
    found = []
    for record in records:
        if record["attributes"]["profiling.data.type"] != "allocation":
            continue
        message = decode(gzip.decompress(base64.b64decode(record["body"], validate=True)))
        text = message.string_table
        names = [text[kind.type] for kind in message.sample_type]
        assert {text[kind.type]: text[kind.unit] for kind in message.sample_type} == {
            "alloc_samples": "count",
            "alloc_space": "bytes",
            "inuse_objects": "count",
            "inuse_space": "bytes",
        }
        functions = {place.id: text[message.function[place.line[0].function_id - 1].name] for place in message.location}
        for sample in message.sample:
            found.append(
                Allocated(
                    tuple(functions[place] for place in sample.location_id),
                    dict(zip(names, sample.value, strict=True)),
                    {text[label.key]: text[label.str] for label in sample.label if label.str},
                    record["resource"]["process.pid"],
                )
            )
    return found


def _sums(found: list[Allocated]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for each in found:
        sums.update(each.values)
    return sums


def _of_cache(found: list[Allocated]) -> list[Allocated]:
    return [each for each in found if "__main__.fill_cache" in each.functions]


def test_allocations_have_their_place_span_labels_and_thread() -> None:
    records, ledger = _run("once")
    assert ledger["hooked"] == [False, True, False]
    found = _of_cache(_read(records))
    sums = _sums(found)
    assert sums["alloc_space"] == pytest.approx(ledger["bytes"], rel=0.15)
    assert sums["inuse_space"] == pytest.approx(ledger["kept"], rel=0.2)
    said = {"span_id": ledger["span"], "endpoint": "GET /cache", "tenant": "acme", "thread.name": "MainThread"}
    of_span = [each for each in found if each.labels.items() >= said.items()]
    assert _sums(of_span)["alloc_space"] == pytest.approx(ledger["bytes"] / 2, rel=0.2)
    of_thread = [each for each in found if each.labels["thread.name"] == "shop"]
    assert _sums(of_thread)["alloc_space"] == pytest.approx(ledger["bytes"] / 2, rel=0.2)
    assert all("span_id" not in each.labels for each in of_thread)
    live = [each for each in found if each.values["inuse_space"]]
    assert {each.labels["heap.age"] for each in live} == {"<1m"}
    assert {each.labels["source.event.name"] for each in found} == {"allocation", "live heap"}


def test_blocks_freed_by_another_thread_are_not_in_use() -> None:
    records, ledger = _run("freed", SPLUNK_PROFILER_EXPORTER="thread")
    sums = _sums(_of_cache(_read(records)))
    assert sums["alloc_space"] == pytest.approx(ledger["bytes"], rel=0.2)
    assert sums["inuse_space"] == 0


@pytest.mark.parametrize("scenario", ["forked", "forked_in_c"])
def test_forked_child_has_the_heap_that_it_made_itself(scenario: str) -> None:
    records, ledger = _run(scenario)
    assert ledger["status"] == 0
    found = _of_cache(_read(records))
    of_child = [each for each in found if each.pid == ledger["child"]]
    for of_process in (of_child, [each for each in found if each.pid != ledger["child"]]):
        assert _sums(of_process)["inuse_space"] == pytest.approx(ledger["kept"], rel=0.25)


def test_text_records_have_the_bytes_that_they_stand_for() -> None:
    records, ledger = _run("once", SPLUNK_PROFILER_DATA_FORMAT="text", SPLUNK_PROFILER_EXPORT_INTERVAL="1000")
    found = [record for record in records if record["attributes"]["profiling.data.type"] == "allocation"]
    of_cache = [record for record in found if ".fill_cache(" in record["body"]]
    assert sum(record["attributes"]["memory.allocated"] for record in of_cache) == pytest.approx(
        ledger["bytes"], rel=0.15
    )
    assert all("source.event.period" not in record["attributes"] for record in found)
    assert {record["attributes"]["source.event.name"] for record in found} == {"allocation"}
    assert {record["span_id"] for record in of_cache} == {"", ledger["span"]}


def test_memory_is_left_alone_unless_it_is_asked_for() -> None:
    records, ledger = _run("once", SPLUNK_PROFILER_MEMORY_ENABLED="false")
    assert ledger["hooked"] == [False, False, False]
    assert _read(records) == []


def test_portable_walker_sends_no_profile_of_memory_and_says_why() -> None:
    run = run_target("allocating_work.py", "once", walker="portable", **_SETTINGS)
    assert {record["attributes"]["profiling.data.type"] for record in run.records} == {"cpu"}
    assert run.output.count("memory needs the native walker") == 1


def test_snapshots_alone_say_that_they_have_no_memory() -> None:
    env = {
        **_SETTINGS,
        "SPLUNK_SNAPSHOT_PROFILER_ENABLED": "true",
        "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9",
    }
    with Target(sys.executable, "-c", "import splunk_profiler; assert splunk_profiler.start()", env=env) as target:
        assert target.finish() == 0, target.output
        assert target.output.count("memory needs SPLUNK_PROFILER_ENABLED=true") == 1


@pytest.mark.parametrize("scenario", ["ending", "forks", "interpreters"])
def test_process_whose_every_allocation_is_sampled_ends_well(scenario: str) -> None:
    with Target("allocation_ends.py", scenario) as target:
        target.line("over")
        assert target.finish() == 0, target.output


def test_report_names_the_line_of_a_leak(tmp_path: Path) -> None:
    example = ROOT / "examples" / "leaky.py"
    settings = {
        "SPLUNK_PROFILER_MEMORY_ENABLED": "true",
        "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "1000",
    }
    collect_program(tmp_path, example, "4", env=settings)
    source = example.read_text("utf-8").splitlines()
    leaking = next(number for number, line in enumerate(source, 1) if "json.loads(DOCUMENT)" in line)
    first = json.loads(splunk_profiler("report", tmp_path, "--json").stdout)["memory"]["lines"][0]
    assert (first["function"], first["line"]) == ("__main__.load", leaking)
    assert first["allocated_bytes"] > first["in_use_bytes"] > 1_000_000
    # The first profile may end before the first request.
    assert first["in_use_bytes"] >= first["grown_bytes"] > 1_000_000
    assert f"leaky.py:{leaking}" in splunk_profiler("report", tmp_path).stdout
