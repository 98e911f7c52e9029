"""Profiles of a real service, collected and saved: what the report says of them, and a store with the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import collect_batch, splunk_profiler

from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import Selection


def report(directory: Path) -> Any:
    ended = splunk_profiler("report", directory, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def assert_imported(directory: Path, path: Path, samples: int, wall_ns: dict[str, float]) -> None:
    """Assert that an import of the directory to a store has these samples and these times of endpoints."""
    ended = splunk_profiler("view", directory, "--store", path)
    assert (ended.returncode, ended.stdout) == (0, f"saved in {path}\n"), ended.stderr
    recording = LiveStore(path).recording
    assert recording.weights(Selection("samples")).sum() == samples > 10
    weights = dict(recording.facet_values(Selection("wall"))["endpoint"].values)
    assert "count primes" in wall_ns
    assert {name: weights.get(name, 0) for name in wall_ns} == pytest.approx(wall_ns)


def test_report_and_store_of_samples_have_the_same_numbers(batch_folder: Callable[[str], Path], tmp_path: Path) -> None:
    found = report(batch_folder("text"))
    spans = {name: tally["thread_seconds"] * 1e9 for name, tally in found["by_span"].items()}
    assert_imported(batch_folder("text"), tmp_path / "store.db", found["samples"], spans)


def test_report_of_profiles_lists_own_code_first_and_a_store_agrees(tmp_path: Path) -> None:
    output = collect_batch(tmp_path, "pprof-gzip-base64", 100_000, 150_000)
    assert "0 samples (0% inside spans) · 1 aggregated profiles" in output

    profiles = report(tmp_path)["profiles"]
    assert (profiles["records"], profiles["services"]) == (1, {"batch": 1})
    endpoints = profiles["endpoints"]
    assert_imported(
        tmp_path,
        tmp_path / "store.db",
        profiles["samples"],
        {name: each["wall_ns"] for name, each in endpoints.items()},
    )

    endpoint = endpoints["count primes"]
    functions = {entry["function"]: entry for entry in endpoint["functions"]}
    counting = functions["__main__.count_primes"]
    assert (counting["kind"], counting["distribution"]) == ("application", "")
    assert counting["total_cpu_ns"] == endpoint["cpu_ns"] > 0
    yours = [entry["direct_cpu_ns"] for entry in functions.values() if entry["kind"] == "application"]
    assert sum(yours) == endpoint["cpu_ns"]
    pool = functions["concurrent.futures.thread._worker"]
    assert (pool["kind"], pool["own_cpu_ns"]) == ("standard-library", 0)
    assert pool["distribution"].startswith("python==")

    shown = splunk_profiler("report", tmp_path).stdout
    by_cpu, _, by_wall = shown.partition("by CPU time")[2].partition("by wall time")
    at = by_cpu.index("__main__.count_primes")
    assert by_cpu.index("count primes") < at
    assert "(outside of spans)" not in by_cpu[:at]
    assert "(outside of spans)" in by_wall  # what waits there may never be seen to use its little CPU time
