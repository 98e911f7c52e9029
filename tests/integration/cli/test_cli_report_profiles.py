"""Aggregated profiles from a real service to the report: collected, saved, and read again with whose code it is."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import collect_batch, splunk_profiler


def test_report_of_collected_profiles_lists_the_services_own_code_first(
    tmp_path: Path,
) -> None:
    output = collect_batch(tmp_path, "pprof-gzip-base64", 100_000, 150_000)
    assert "0 samples (0% inside spans) · 1 aggregated profiles" in output

    ended = splunk_profiler("report", tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    profiles = json.loads(ended.stdout)["profiles"]
    assert (profiles["records"], profiles["services"]) == (1, {"batch": 1})
    endpoint = profiles["endpoints"]["count primes"]
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
