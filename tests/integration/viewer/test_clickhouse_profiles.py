"""The viewer on ClickHouse's engine, with the exporter's table of profiles."""

from __future__ import annotations

import time
from typing import Any

from clickhouse_tables import Database, time_text
from command_line import splunk_profiler
from saved_samples import SPAN, TRACE, span_line

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.trees import top_table

OTHER_TRACE = "f" * 32
SAMPLES = Selection("samples")


def profile_row(*frames: str, time_ns: int, **columns: Any) -> dict[str, Any]:
    """Return a sample of an eBPF profiler; frames are leaf first, as ``function file line``, or a file of code."""
    parts = [frame.split(" ") for frame in frames]
    described = {"process.executable.name": "python3", "process.pid": "7", "host.name": "node"}
    return {
        "Timestamp": time_text(time_ns),
        "SampleType": "samples",
        "SampleUnit": "count",
        "PeriodType": "cpu",
        "PeriodUnit": "nanoseconds",
        "Period": 50_000_000,
        "ServiceName": "shop",
        "ResourceAttributes": described,
        "SampleAttributes": {"thread.name": "worker-1"},
        "FunctionNames": [part[0] if len(part) > 1 else "" for part in parts],
        "FileNames": [part[1] if len(part) > 1 else "" for part in parts],
        "LineNumbers": [int(part[2]) if len(part) > 1 else 0 for part in parts],
        "MappingFileNames": ["" if len(part) > 1 else part[0] for part in parts],
        "TimestampsUnixNano": [time_ns],
        **columns,
    }


def test_samples_of_host_profilers_are_read_from_the_table_of_profiles(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    database.make_profiles()
    time_ns = (time.time_ns() // 30_000_000_000 - 20) * 30_000_000_000  # a step of an hour
    rank, main = "rank /srv/shop.py 7", "main /srv/shop.py 30"
    in_span = {"TraceId": TRACE, "SpanId": SPAN}
    rows = [
        profile_row(rank, main, time_ns=time_ns, TimestampsUnixNano=[time_ns, time_ns + 1, time_ns + 2], **in_span),
        profile_row(rank, main, time_ns=time_ns + 10**9, Values=[4, 5], **in_span),
        profile_row("rank /srv/shop.py 8", main, time_ns=time_ns),
        profile_row("/usr/lib/libc.so.6", "PyEval /src/ceval.c 900", main, time_ns=time_ns, ServiceName=""),
        profile_row(time_ns=time_ns, SampleType="off_cpu", SampleUnit="nanoseconds", PeriodType="", Values=[700]),
        profile_row(time_ns=time_ns, SampleType="cpu", SampleUnit="nanoseconds", Values=[20]),
        profile_row(time_ns=time_ns, SampleType="wall", SampleUnit="microseconds", Values=[3]),
    ]
    database.insert_rows("otel_profiles", rows)
    database.insert([span_line("GET /", times_ns=(time_ns, time_ns + 10**9))])
    shown = ClickHouse(database.address, database.environment, table="otel_profiles")
    found, cpu = shown.recording, Selection("cpu")
    assert {name: found.units[name] for name in found.values} == {
        "samples": "count",
        "cpu": "nanoseconds",
        "off_cpu": "nanoseconds",
        "wall (microseconds)": "microseconds",  # those of samples as text are nanoseconds
    }
    assert found.count() == 6  # equal ones of a step are one
    assert found.weights(SAMPLES).sum() == 3 + 9 + 1 + 1
    assert found.weights(cpu).sum() == 14 * 50_000_000 + 20
    assert found.weights(Selection("off_cpu")).sum() == 700
    top = {
        found.functions[row.function]: (row.own, row.total) for row in top_table(found.stacks, found.weights(SAMPLES))
    }
    assert top == {
        ("rank", "/srv/shop.py", "application"): (13, 13),
        ("main", "/srv/shop.py", "application"): (0, 14),
        ("(libc.so.6)", "/usr/lib/libc.so.6", ""): (1, 1),
        ("PyEval", "/src/ceval.c", ""): (0, 1),
    }
    facets = {name: dict(each.values) for name, each in found.facet_values(SAMPLES).items()}
    assert facets["service"] == {"shop": 13, "python3": 1}
    assert facets["process"] == {"shop node 7": 13, "python3 node 7": 1}
    assert facets["endpoint"] == {"GET /": 12, "(outside of spans)": 2}
    assert facets["thread"] == {"worker-1": 14}
    assert facets["trace"] == {TRACE: 12, "": 2}
    answer = Answers(shown).trace(SAMPLES, TRACE)
    assert [row[:3] + row[6:7] for row in answer["rows"]] == [[SPAN, 0, "GET /", 12]]
    of_service = ClickHouse(database.address, database.environment, table="otel_profiles", service="shop")
    assert of_service.recording.weights(SAMPLES).sum() == 13


def test_a_light_trace_of_profiles_is_read_when_it_is_asked_for(database: Database) -> None:
    database.make_profiles()
    time_ns = time.time_ns() - 600 * 10**9
    heavy = [
        profile_row("main /srv/shop.py 1", time_ns=time_ns, TraceId=f"{number:032x}", SpanId=SPAN)
        for number in range(1, 101)
        for _ in range(2)
    ]
    light = profile_row("light /srv/shop.py 2", time_ns=time_ns, TraceId=OTHER_TRACE, SpanId=SPAN)
    database.insert_rows("otel_profiles", [*heavy, light])
    shown = ClickHouse(database.address, database.environment, table="otel_profiles")
    assert not shown.recording.has_trace(OTHER_TRACE)
    chosen = Selection("samples", filters={"trace": frozenset({OTHER_TRACE})})
    assert [row[0] for row in Answers(shown).top(chosen, "")["rows"]] == ["light"]
    assert Answers(shown).flame(chosen, inverted=False)["total"] == 1


def test_the_table_of_samples_is_chosen_by_its_name(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    database.make_profiles()
    database.insert_rows("otel_profiles", [profile_row("main /srv/shop.py 1", time_ns=time.time_ns() - 600 * 10**9)])
    database.do("RENAME TABLE otel_profiles TO host_profiles")
    name = f"http://127.0.0.1:{database.port}/{database.name}"

    def said(table: str) -> str:
        asked = splunk_profiler(
            "view", database.address, "--table", table, "--html", "/dev/null", env=database.environment
        )
        return asked.stdout + asked.stderr.removeprefix("splunk-profiler: error: ")

    assert said("host_profiles").startswith("saved in /dev/null\n")
    assert said("otel_logs") == f"{name} has no records of the profiler in otel_logs: does the Collector write there?\n"
    assert said("otel_traces") == f"{name}: the table otel_traces is not one of logs or of profiles\n"
    assert (
        said("otel_profiles") == f"{name} has no table otel_profiles: the Collector makes it with the first records\n"
    )
    database.do("RENAME TABLE host_profiles TO `host profiles`")
    assert said("host profiles") == f"{name}: the table host profiles is not one of logs or of profiles\n"
    database.do("TRUNCATE TABLE `host profiles`")
    database.do("RENAME TABLE `host profiles` TO otel_profiles")
    assert said("otel_profiles") == f"{name} has no profiles in otel_profiles: does the Collector write there?\n"
