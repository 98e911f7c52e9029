"""A recording of a real process with all kinds of events: each value of the page is that of `report` and of pprof."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from command_line import ROOT, collect_program, splunk_profiler
from pprof_tool import pprof_top, run_pprof
from target_process import TESTS
from viewer_page import IN_BROWSER, act, shown, shown_on

pytestmark = [
    *IN_BROWSER,
    pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="memory needs the native walker"),
]
SETTINGS = {
    "SPLUNK_PROFILER_ENABLED": "true",
    "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
    "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10",
    "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
    "SPLUNK_PROFILER_EXPORT_INTERVAL": "1000",
    "SPLUNK_PROFILER_MEMORY_ENABLED": "true",
    "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": "10000",
    "SPLUNK_PROFILER_EXCEPTIONS_ENABLED": "true",
    "SPLUNK_PROFILER_EXCEPTIONS_INTERVAL": "1",
    "SPLUNK_PROFILER_LOOP_BLOCKED_MS": "20",
}
OF_TIME = ["cpu", "wall", "samples", "collections", "gc", "tasks", "task_wait", "loop_blocks", "loop_blocked"]
OF_LOCKS, OF_EXCEPTIONS = ["lock_waiters", "lock_delay"], ["exceptions"] * (sys.version_info >= (3, 12))
OF_THE_GIL = ["gil_wait", "gil_long_waits", "gil_snapshots"]
OF_MEMORY, IN_USE = ["alloc_samples", "alloc_space"], ["inuse_space", "inuse_objects"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a collector has received of a process with all kinds of events."""
    directory = tmp_path_factory.mktemp("events")
    collect_program(directory, TESTS / "targets" / "all_events.py", "4", env=SETTINGS)
    return directory


@pytest.fixture(scope="module")
def totals(page: Page, recorded: Path) -> Iterator[dict[str, int]]:
    """Return the totals of all values of the menu, each chosen in it."""
    found = {}
    with shown_on(page, recorded) as address:
        page.open(address)
        for name in page.value("overview.values.map(({ name }) => name)"):
            act(page, f"byId('value').value = '{name}'; byId('value').dispatchEvent(new Event('change'))")
            found[name] = page.value("graph.frames[0].total")
            assert page.value(f"amount({found[name]}, unit())") == shown(page, "#total")
            assert (
                sum(page.value("timeline.series.map(([, weights]) => weights.reduce((one, other) => one + other))")) > 0
            )
        yield found


def test_the_menu_has_all_values(totals: dict[str, int]) -> None:
    assert {name for name, total in totals.items() if total} == {
        *(*OF_TIME, *OF_LOCKS, *OF_THE_GIL, *OF_EXCEPTIONS, *OF_MEMORY, *IN_USE)
    }


def test_totals_of_all_values_are_those_of_the_report(totals: dict[str, int], recorded: Path) -> None:
    data: Any = json.loads(splunk_profiler("report", recorded, "--json").stdout)
    profiles, lines = data["profiles"], data["memory"]["lines"]
    expected = {
        "cpu": profiles["cpu_ns"],
        "wall": profiles["wall_ns"],
        "samples": profiles["samples"],
        "task_wait": sum(each["wait_ns"] for each in profiles["task_waits"]),
        "loop_blocks": sum(each["count"] for each in profiles["loop_blocks"]),
        "loop_blocked": sum(each["blocked_ns"] for each in profiles["loop_blocks"]),
        "lock_delay": sum(each["delay_ns"] for each in profiles["lock_holds"]),
        "alloc_space": sum(each["allocated_bytes"] for each in lines),
        "inuse_space": sum(each["in_use_bytes"] for each in lines),
    }
    waits = profiles["gil_waits"]
    expected |= zip(OF_THE_GIL, (waits["sum_ns"], waits["long_count"], waits["snapshot_count"]), strict=True)
    if OF_EXCEPTIONS:
        expected["exceptions"] = sum(each["count"] for each in profiles["exceptions"])
    assert {name: totals[name] for name in expected} == expected


def extract_profiles(recorded: Path, folder: Path) -> dict[str, list[str]]:
    """Extract the profiles of a recording to files, and return their names by kind, the largest last."""
    shutil.copy(recorded / "logs.jsonl", folder)
    subprocess.run([sys.executable, ROOT / "examples" / "extract_profiles.py", folder], check=True, capture_output=True)
    return {
        suffix: [path.name for path in sorted(folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_size)]
        for suffix in ("[0-9].pprof", "-allocation.pprof")
    }


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_totals_of_all_values_are_those_of_pprofs_own_tool(
    totals: dict[str, int], recorded: Path, tmp_path: Path
) -> None:
    files = extract_profiles(recorded, tmp_path)
    # Of what is in use the page has the last profile of each process; waits for the GIL are a comment.
    for name in totals.keys() - {*IN_USE, *OF_THE_GIL}:
        of_it = files["-allocation.pprof" if name in OF_MEMORY else "[0-9].pprof"]
        unit = "B" if name == "alloc_space" else "ns"
        printed = run_pprof(
            tmp_path, "-top", f"-unit={unit}", "-nodecount=0", "-nodefraction=0", f"-sample_index={name}", *of_it
        )
        (whole,) = re.findall(r" of (\d+)\w* total$", printed, re.M)
        assert int(whole) == totals[name], name


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
@pytest.mark.parametrize("kind", ["[0-9].pprof", "-allocation.pprof"])
def test_functions_of_one_profile_have_the_numbers_of_pprofs_own_tool(
    page: Page, recorded: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / extract_profiles(recorded, tmp_path)[kind][-1]
    ask = "ask('top', new URLSearchParams({{ value: '{}', search: '', sort: 'own' }})).then(({{ rows }}) => rows)"
    with shown_on(page, path) as address:
        page.open(address)
        names = page.value("overview.values.map(({ name }) => name)")
        assert set(IN_USE if "allocation" in kind else [*OF_TIME[:3], "gil_snapshots"]) <= set(names)
        for name in names:
            set_value = f"byId('value').value = '{name}'; byId('value').dispatchEvent(new Event('change'))"
            if name != page.value("value()"):
                act(page, set_value)
            rows = page.value(ask.format(name))
            found = {function: (own, total) for function, _, _, _, own, total in rows}
            assert len(found) == len(rows) < 500
            if name in OF_THE_GIL:  # a comment of the profile
                assert list(found) == ["[process].gil_wait"]
                continue
            unit = "B" if name in {"alloc_space", "inuse_space"} else "ns"
            everything = f"-unit={unit}", "-nodecount=0", "-nodefraction=0", "-edgefraction=0"
            assert found == pprof_top(run_pprof(tmp_path, "-top", *everything, f"-sample_index={name}", path.name)), (
                name
            )
