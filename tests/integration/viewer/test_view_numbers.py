"""The numbers of the page and of `report` are the same for the same files of a profiled process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import splunk_profiler

from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.trees import top_table


def recorded(directory: Path) -> tuple[Recording, dict[str, Any]]:
    files = LiveFiles(directory)
    files.refresh()
    report = splunk_profiler("report", directory, "--json")
    assert report.returncode == 0, report.stderr
    return files.recording, json.loads(report.stdout)


def of_functions(recording: Recording, selection: Selection) -> tuple[Counter[str], Counter[str]]:
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for row in top_table(recording.stacks, recording.weights(selection)):
        own[recording.functions[row.function].name] += round(row.own)
        total[recording.functions[row.function].name] += round(row.total)
    return +own, +total


def of(**filters: str) -> dict[str, frozenset[str]]:
    return {name: frozenset({value}) for name, value in filters.items()}


def test_profiles_have_the_numbers_of_the_report(batch_folder: Callable[[str], Path]) -> None:
    recording, report = recorded(batch_folder("pprof-gzip-base64"))
    profiles = report["profiles"]
    assert profiles["samples"] > 10
    for value, whole in (("samples", "samples"), ("cpu", "cpu_ns"), ("wall", "wall_ns")):
        assert recording.weights(Selection(value)).sum() == profiles[whole]
    assert dict(recording.facet_values(Selection("wall"))["endpoint"].values) == {
        name: endpoint["wall_ns"] for name, endpoint in profiles["endpoints"].items() if endpoint["wall_ns"]
    }
    in_traces = sum(
        recording.span_weights(Selection("wall", filters=of(trace=trace)))[span]
        for trace, spans in recording.spans.items()
        for span in spans
    )
    assert in_traces == sum(
        weight for name, weight in recording.facet_values(Selection("wall"))["trace"].values if name
    )
    for name, endpoint in profiles["endpoints"].items():
        for value in ("cpu", "wall"):
            own, total = of_functions(recording, Selection(value, filters=of(endpoint=name)))
            entries = endpoint["functions"]
            assert own == +Counter({entry["function"]: entry[f"own_{value}_ns"] for entry in entries})
            assert total == +Counter({entry["function"]: entry[f"total_{value}_ns"] for entry in entries})


def test_texts_have_the_numbers_of_the_report(batch_folder: Callable[[str], Path]) -> None:
    recording, report = recorded(batch_folder("text"))
    assert report["samples"] > 10
    assert recording.weights(Selection("samples")).sum() == report["samples"]
    running = Selection("samples", filters=of(state="running"))
    assert recording.weights(running).sum() == report["samples_running"]
    assert "count primes" in report["by_span"]
    for name, tally in report["by_span"].items():
        whole = Selection("wall", filters=of(span=name))
        assert recording.weights(whole).sum() == round(tally["thread_seconds"] * 1e9)
        for state, entries in (("running", tally["functions"]), ("waiting", tally["waiting_functions"])):
            own, total = of_functions(recording, Selection("samples", filters=of(span=name, state=state)))
            assert own == +Counter({entry["function"]: entry["own"] for entry in entries})
            assert total == Counter({entry["function"]: entry["total"] for entry in entries})
