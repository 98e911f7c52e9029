"""Sums of profiles of allocations in the report: which line grew, in which process."""

from __future__ import annotations

import io
import json
from itertools import permutations
from pathlib import Path
from typing import Any

from profile_factory import origin_in_shop
from saved_samples import allocation_line

from splunk_profiler.cli.analysis import Analysis
from splunk_profiler.cli.memory_profiles import MemoryProfiles
from splunk_profiler.cli.report import draw, to_dict
from splunk_profiler.cli.terminal import Terminal
from splunk_profiler.formats.pprof import body, parts
from splunk_profiler.model import DataType, EventKind, Frame, Stack, ValueType
from splunk_profiler.pipeline.live_heap import HEAP_BEGINS, LIVE_HEAP
from splunk_profiler.samples import Aggregate, Profile

ALLOCATION = EventKind(
    "allocation", ValueType("alloc_samples", "count"), ValueType("alloc_space", "bytes"), DataType.ALLOCATION
)
FILL = Frame("shop.cache", "fill", "/srv/shop/cache.py", 12)
SEARCH = Frame("shop.app", "search", "/srv/shop/app.py", 4)
DECODE = Frame("json.decoder", "decode", "/usr/lib/python3.12/json/decoder.py", 337)
MIB, SECOND_NS = 1 << 20, 1_000_000_000


def profile(
    second: int, allocated: dict[Frame, int], in_use: dict[Frame, int], comments: tuple[str, ...] = (), seconds: int = 1
) -> str:
    aggregates = [
        Aggregate(Stack((DECODE, frame), truncated=False), (), 0, 0, 0, kind, 1, size)
        for kind, sizes in ((ALLOCATION, allocated), (LIVE_HEAP, in_use))
        for frame, size in sizes.items()
    ]
    made = Profile(
        second * SECOND_NS,
        seconds * SECOND_NS,
        1,
        tuple(aggregates),
        data_type=DataType.ALLOCATION,
        kinds=(ALLOCATION, LIVE_HEAP),
        comments=comments,
    )
    (part,) = parts(made, origin_of=origin_in_shop)
    return body(part).decode()


def logs(body: str, resource: dict[str, str]) -> dict[str, Any]:
    """Return a profile of allocations, with attributes of its process, as an entry of OTLP/JSON."""

    def described(attributes: dict[str, str]) -> list[dict[str, Any]]:
        return [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]

    of_record = {"profiling.data.type": "allocation", "profiling.data.format": "pprof-gzip-base64"}
    record = {"body": {"stringValue": body}, "attributes": described(of_record)}
    scope = {"scope": {"name": "otel.profiling"}, "logRecords": [record]}
    return {"resource": {"attributes": described(resource)}, "scopeLogs": [scope]}


def test_line_that_grew_most_comes_first_with_all_processes_added() -> None:
    memory = MemoryProfiles()
    late = profile(3, {FILL: 5 * MIB, SEARCH: 90 * MIB}, {FILL: 7 * MIB, SEARCH: 9 * MIB})
    assert memory.add(late, "shop 1")
    assert memory.add(profile(1, {FILL: MIB}, {FILL: MIB, SEARCH: 9 * MIB}), "shop 1")
    assert memory.add(profile(2, {FILL: MIB}, {FILL: 50 * MIB}), "shop 1")
    assert memory.add(profile(4, {FILL: MIB}, {FILL: 2 * MIB}), "shop 2")
    found = [(line.place.function, line.allocated, line.in_use, line.grown) for line in memory.lines()]
    assert found == [
        ("shop.cache.fill", 8 * MIB, 9 * MIB, 6 * MIB),
        ("shop.app.search", 90 * MIB, 9 * MIB, 0),
    ]
    assert memory.records == 4


def test_processes_of_containers_are_told_apart_by_runtime_id() -> None:
    analysis = Analysis([])
    for second, pod, in_use in [(1, "a", 50), (2, "b", 10), (3, "a", 90), (4, "b", 10)]:
        analysis.add_logs(logs(profile(second, {}, {FILL: in_use * MIB}), {"process.pid": "1", "runtime-id": pod}))
    for second, pid, in_use in [(1, "7", 1), (2, "8", 4), (3, "7", 3)]:
        analysis.add_logs(logs(profile(second, {}, {FILL: in_use * MIB}), {"process.pid": pid}))
    (line,) = analysis.memory.lines()
    assert (line.in_use, line.grown) == ((90 + 10 + 3 + 4) * MIB, (40 + 2) * MIB)


def test_growth_is_counted_from_where_the_heap_begins_anew() -> None:
    profiles = [
        profile(1, {}, {SEARCH: 150 * MIB}, (HEAP_BEGINS,)),
        profile(2, {}, {SEARCH: 155 * MIB}),
        profile(3, {}, {SEARCH: MIB}, (HEAP_BEGINS,)),
        profile(4, {}, {SEARCH: 4 * MIB}),
    ]
    for order in permutations(profiles):
        memory = MemoryProfiles()
        for each in order:
            memory.add(each, "shop")
        (line,) = memory.lines()
        assert (line.in_use, line.grown) == (4 * MIB, 3 * MIB)


def test_memory_of_processes_that_have_ended_is_not_in_use() -> None:
    memory = MemoryProfiles()
    for worker, began in enumerate((0, 20, 33)):  # each for two intervals of 8 s, the second of them cut short
        for second, seconds, in_use in [(began, 8, 1), (began + 8, 3, 5)]:
            memory.add(profile(second, {}, {FILL: in_use * MIB}, seconds=seconds), f"worker {worker}")
    (line,) = memory.lines()
    assert (line.in_use, line.grown) == (2 * 5 * MIB, 2 * 4 * MIB), "of two that may last still"
    memory.add(profile(53, {}, {}, seconds=8), "another")
    (line,) = memory.lines()
    assert (line.in_use, line.grown) == (0, 0)


def test_a_process_that_was_stopped_for_long_keeps_no_memory_of_ended_ones() -> None:
    memory = MemoryProfiles()
    memory.add(profile(3400, {}, {FILL: 5 * MIB}, seconds=8), "ended")
    for second, seconds in [(0, 3600), (3600, 8)]:
        memory.add(profile(second, {}, {FILL: MIB}, seconds=seconds), "stopped for an hour")
    (line,) = memory.lines()
    assert line.in_use == MIB


def test_parts_of_one_profile_are_added_up() -> None:
    memory = MemoryProfiles()
    for _ in range(2):
        memory.add(profile(1, {}, {FILL: MIB}), "shop")
    for _ in range(2):
        memory.add(profile(2, {}, {FILL: 3 * MIB}), "shop")
    (line,) = memory.lines()
    assert (line.in_use, line.grown) == (6 * MIB, 4 * MIB)


def test_report_shows_lines_with_their_place() -> None:
    analysis = Analysis([])
    analysis.memory.add(profile(1, {FILL: 3 * MIB, SEARCH: 9 << 30}, {FILL: 2 * MIB}), "shop")
    output = io.StringIO()
    draw(analysis, Path("profiles"), console=Terminal(file=output, width=120))
    text = output.getvalue()
    assert "Memory in use at the end" in text
    assert "cache.py:12" in text
    assert "9.0 GiB" in text
    lines = to_dict(analysis, Path("profiles"))["memory"]["lines"]
    assert (lines[0]["function"], lines[0]["in_use_bytes"]) == ("shop.cache.fill", 2 * MIB)


def test_report_of_empty_heaps_has_no_tables_of_memory() -> None:
    analysis = Analysis([])
    analysis.memory.add(profile(1, {}, {}), "shop")
    output = io.StringIO()
    draw(analysis, Path("profiles"), console=Terminal(file=output, width=120))
    assert "emory" not in output.getvalue()
    assert "allocated" not in output.getvalue()


def test_report_shows_allocations_as_text_by_line_without_a_heap() -> None:
    analysis = Analysis([])
    for allocated in (2 * MIB, 3 * MIB):
        (entry,) = json.loads(allocation_line(allocated))["resourceLogs"]
        analysis.add_logs(entry)
    output = io.StringIO()
    draw(analysis, Path("profiles"), console=Terminal(file=output, width=120))
    text = output.getvalue()
    assert "5.0 MiB" in text
    assert "shop.py:7" in text
    assert "in use" not in text
    found = to_dict(analysis, Path("profiles"))
    assert (found["samples"], found["records_by_other_type"]) == (0, {})
    (line,) = found["memory"]["lines"]
    assert (line["function"], line["line"], line["allocated_bytes"]) == ("shop.rank", 7, 5 * MIB)
    assert (line["in_use_bytes"], line["grown_bytes"]) == (None, None)
