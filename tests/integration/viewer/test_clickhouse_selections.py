"""Selections on the page of a database: what has not been read at their time, of their services or traces is asked for.

Their numbers are compared with those of a directory that has every sample.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clickhouse_tables import ORDERS, Database
from faulty_relay import run_relay
from profile_factory import SPAN_ID, TRACE_ID, record_body, small_profile
from saved_samples import TRACE, profile_line, sample_line, span_line

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.model import FACETS, Baseline, Selection
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.source import Source

SECOND_NS = 10**9
START_NS = (time.time_ns() - 1200 * SECOND_NS) // (30 * SECOND_NS) * 30 * SECOND_NS  # begins a step of an hour
MANY_PROFILES = 2000  # that are read at most
LIGHT_TRACES = "e" * 32, "f" * 32


@pytest.fixture
def lines() -> list[str]:
    """Ten minutes of two services, of whose traces a hundred have more samples than two others."""
    heavy = [
        sample_line("own.heavy(/own.py:3)", time_ns=START_NS).replace(TRACE, f"{number:032x}")
        for number in range(1, 101)
        for _ in range(3)
    ]
    light = [
        sample_line("own.light(/own.py:4)", time_ns=START_NS + 5 * SECOND_NS, service="pay").replace(TRACE, trace)
        for trace in LIGHT_TRACES
    ]
    each_second = [
        sample_line(
            f"own.step_{second % 7}(/own.py:5)", time_ns=START_NS + second * SECOND_NS, span="", service=service
        )
        for second in range(600)
        for service in ("shop", "pay")
    ]
    return [*heavy, *light, *each_second]


def fill(database: Database, lines: Iterable[str], directory: Path) -> Source:
    """Put requests into a database and a directory, and return the latter."""
    database.make_tables("by_timestamp_time")
    database.insert(lines)
    (directory / "requests.jsonl").write_text("".join(lines), "utf-8")
    return LiveFiles(directory)


def shown_by(source: Source, selection: Selection, baseline: Baseline | None = None) -> dict[str, Any]:
    """Return what the page shows of a selection, in an order that does not depend on where it comes from."""
    answers = Answers(source)
    facets = answers.facets(selection)["facets"]
    top = answers.top(selection, "", baseline)
    return {
        "facets": {name: sorted(map(tuple, facets[name])) for name in ("service", "endpoint", "state", "thread")},
        "trace": {trace: weight for trace, weight in facets["trace"] if trace in LIGHT_TRACES},
        "top": (top["total"], sorted(map(tuple, top["rows"]))),
        "flame": answers.flame(selection, False, baseline)["total"],
    }


@pytest.mark.parametrize("seconds", [(10, 20), (0, 47), (299, 300), (595, 9999)])
@pytest.mark.parametrize("filters", [{}, {"service": frozenset({"pay"})}], ids=["all", "one service"])
def test_a_stretch_has_its_own_samples_wherever_it_begins_and_ends(
    database: Database, tmp_path: Path, lines: list[str], seconds: tuple[int, int], filters: Any
) -> None:
    files = fill(database, lines, tmp_path)
    since_ns, until_ns = (START_NS + each * SECOND_NS for each in seconds)
    stretch = Selection("wall", since_ns, until_ns, filters)
    shown = shown_by(ClickHouse(database.address, database.environment), stretch)
    assert shown == shown_by(files, stretch)
    assert {service for service, _ in shown["facets"]["service"]} == {"shop", "pay"}


@pytest.mark.parametrize("start_ns", [START_NS, START_NS + 7 * SECOND_NS], ids=["at a step", "between two"])
def test_a_part_of_a_week_has_a_timeline_with_its_own_steps(
    database: Database, tmp_path: Path, lines: list[str], start_ns: int
) -> None:
    files = fill(database, lines, tmp_path)
    shown = ClickHouse(database.address, database.environment, last_hours=168)
    of_week = Answers(shown).timeline(Selection("samples"), "service")["series"][0].weights
    assert sum(map(bool, of_week)) <= 2  # of 84 minutes: the ten may be in two of them
    part = Selection("samples", start_ns, START_NS + 367 * SECOND_NS)
    ours, theirs = (Answers(source).timeline(part, "service") for source in (shown, files))
    assert (ours["start"], ours["step"]) == (theirs["start"], theirs["step"])
    assert sorted(ours["series"]) == sorted(theirs["series"])  # of two that weigh the same either may come first
    assert {len(each.weights) for each in ours["series"]} == {120}


def test_no_step_of_a_timeline_is_shorter_than_those_in_which_is_counted(
    database: Database, tmp_path: Path, lines: list[str]
) -> None:
    fill(database, lines, tmp_path)
    minute = Selection("samples", START_NS + 10 * SECOND_NS, START_NS + 70 * SECOND_NS)
    line = Answers(ClickHouse(database.address, database.environment)).timeline(minute, "service")
    assert line["step"] == str(SECOND_NS)
    assert min(map(sum, zip(*(each.weights for each in line["series"]), strict=True))) > 0


def test_light_traces_are_shown_together_and_compared_with_everything(
    database: Database, tmp_path: Path, lines: list[str]
) -> None:
    files = fill(database, lines, tmp_path)
    database_shown = ClickHouse(database.address, database.environment)
    both = Selection("wall", filters={"trace": frozenset(LIGHT_TRACES)})
    everything, stretch = Selection("wall"), Selection("wall", START_NS, START_NS + 15 * SECOND_NS)
    for selection, before in ((both, everything), (everything, both), (stretch, both), (both, stretch)):
        baseline = Baseline(before, "share")
        ours, theirs = (shown_by(source, selection, baseline) for source in (database_shown, files))
        assert ours["top"] == theirs["top"]
        assert ours["flame"] == theirs["flame"] > 0
    assert shown_by(database_shown, both)["top"][0] == 2 * SECOND_NS


def test_what_is_added_to_a_trace_is_shown(database: Database, tmp_path: Path, lines: list[str]) -> None:
    fill(database, lines, tmp_path)
    shown = ClickHouse(database.address, database.environment, refresh_ns=0, lag_ns=0)
    chosen = Selection("samples", filters={"trace": frozenset({LIGHT_TRACES[0]})})
    assert Answers(shown).flame(chosen, inverted=False)["total"] == 1
    database.insert([sample_line("own.late(/own.py:6)", time_ns=time.time_ns()).replace(TRACE, LIGHT_TRACES[0])])
    assert {row[0] for row in Answers(shown).top(chosen, "")["rows"]} == {"own.light", "own.late"}


def test_an_older_trace_is_found_in_the_profiles_of_its_time(database: Database) -> None:
    def profile_at(seconds: int, service: str = "shop") -> str:
        time_ns = old_ns + seconds * SECOND_NS
        return profile_line(record_body(replace(small_profile(), time_ns=time_ns)), service=service, time_ns=time_ns)

    def span_of(trace: str) -> str:
        times_ns = old_ns, old_ns + 5 * SECOND_NS
        return span_line("GET /", SPAN_ID, times_ns=times_ns, service="shop").replace(TRACE, trace)

    old_ns = START_NS - 7200 * SECOND_NS
    database.make_tables("by_timestamp_time")
    profiles = [profile_at(-8), profile_at(1), profile_at(300), profile_at(0, "other"), profile_at(300, "other")]
    database.insert([*profiles, span_of(TRACE_ID), span_of(LIGHT_TRACES[0]), sample_line(time_ns=START_NS)])
    shown = Answers(ClickHouse(database.address, database.environment))
    found = shown.trace(Selection("samples"), TRACE_ID)
    assert [row[6] for row in found["rows"]] == [2 * 400]
    assert found["note"] == ""
    chosen = Selection("samples", filters={"trace": frozenset({TRACE_ID})})
    assert shown.facets(chosen)["facets"]["span"][0] == ("GET /", 800)
    nothing = "No sample of this trace was found. Profiles are searched at the time and in the services of its spans."
    for trace in LIGHT_TRACES:
        assert shown.trace(Selection("samples"), trace)["note"] == nothing


def test_profiles_left_out_are_read_when_a_service_or_stretch_is_chosen(database: Database) -> None:
    def lines_of(service: str, time_ns: int) -> str:
        return profile_line(record_body(replace(small_profile(), time_ns=time_ns)), service=service, time_ns=time_ns)

    later_ns = START_NS + 60 * SECOND_NS
    busy = (lines_of("busy", later_ns + place) for place in range(MANY_PROFILES))
    database.make_tables("json")
    span = span_line("SELECT", SPAN_ID, times_ns=(START_NS, START_NS)).replace(TRACE, TRACE_ID)
    database.insert([lines_of("quiet", START_NS), span, *busy])
    shown = Answers(ClickHouse(database.address, database.environment))
    note = shown.overview()["note"]
    assert note.endswith("--last-hours. 1 older profiles were left out: select a service or a shorter time.")
    assert shown.facets(Selection("samples"))["facets"]["service"] == [("busy", MANY_PROFILES * 1000)]
    expected = {"SELECT", "(outside of spans)"}
    of_service = Selection("samples", filters={"service": frozenset({"quiet"})})
    for quiet in (of_service, Selection("samples", START_NS, later_ns)):
        assert shown.flame(quiet, inverted=False)["total"] == 1000
        assert {name for name, _ in shown.facets(quiet)["facets"]["span"]} == expected
    assert shown.timeline(of_service, "service")["series"][0].value == "quiet"


def of_process(line: str, described: dict[str, str]) -> str:
    """Return a request whose resource has these attributes as well."""
    request = json.loads(line)
    for resource in request["resourceLogs"]:
        resource["resource"]["attributes"] += [
            {"key": name, "value": {"stringValue": value}} for name, value in described.items()
        ]
    return json.dumps(request) + "\n"


@pytest.mark.parametrize("order", ["by_timestamp_time", "json"])
def test_profiles_left_out_are_read_when_a_version_or_process_is_chosen(
    database: Database, tmp_path: Path, order: str
) -> None:
    def lines_of(seconds: int, count: int, **described: str) -> list[str]:
        times_ns = (START_NS + seconds * SECOND_NS + place for place in range(count))
        attributes = {name.replace("_", "."): value for name, value in described.items()}
        return [
            of_process(profile_line(record_body(replace(small_profile(), time_ns=each)), time_ns=each), attributes)
            for each in times_ns
        ]

    old, new = {"service_version": "1.0", "host_name": "nödé 1"}, {"service_version": "1.1"}
    runtime = {"runtime-id": "é1234567-89ab"}
    older = [
        *lines_of(0, 2, **old, process_pid="7"),
        *lines_of(10, 3, **old, process_pid="7", **runtime),
        *lines_of(20, 1, **new),
    ]
    lines = [*older, *lines_of(60, MANY_PROFILES, **new), sample_line(time_ns=START_NS)]
    (tmp_path / "requests.jsonl").write_text("".join(lines), "utf-8")
    database.make_tables(order)
    database.insert(lines)
    shown, files = ClickHouse(database.address, database.environment), LiveFiles(tmp_path)
    processes = {"shop nödé 1 7", "shop nödé 1 7 é1234567", "shop"}
    assert {name for name, _ in Answers(files).facets(Selection("samples"))["facets"]["process"]} == processes
    chosen = [{"version": {"1.0"}}, *({"process": {name}} for name in processes - {"shop"})]
    both = {"version": {"1.0", "1.1"}, "process": {"shop nödé 1 7", "shop nödé 1 7 é1234567"}}
    stretch = Selection("samples", START_NS, START_NS + 90 * SECOND_NS)
    selections = [Selection("samples"), *4 * [stretch]]
    for filters, times in zip((both, *chosen, {**both, "service": {"shop"}}), selections, strict=True):
        selection = replace(times, filters={name: frozenset(each) for name, each in filters.items()})
        ours, theirs = shown_by(shown, selection), shown_by(files, selection)
        assert (ours["top"], ours["flame"]) == (theirs["top"], theirs["flame"])
        for name in ("endpoint", "state", "thread"):
            assert ours["facets"][name] == theirs["facets"][name]


@pytest.mark.parametrize("order", ORDERS)
def test_filters_by_what_has_been_read_ask_nothing_and_say_the_same(
    database: Database, tmp_path: Path, order: str
) -> None:
    described = {"service.version": "1.0", "host.name": "node", "process.pid": "7", "runtime-id": "0123456789"}
    samples = [
        sample_line(f"own.step_{service}(/own.py:5)", time_ns=START_NS, span=span, service=service, state=state)
        for service in ("shop", "pay")
        for span in ("", SPAN_ID)
        for state in ("running", "waiting")
    ]
    profile = profile_line(record_body(replace(small_profile(), time_ns=START_NS)), time_ns=START_NS)
    lines = [*samples, *(of_process(line, described) for line in samples), profile, of_process(profile, described)]
    span = span_line("GET /", SPAN_ID, times_ns=(START_NS, START_NS + SECOND_NS), service="shop")
    lines += [span, span.replace(TRACE, TRACE_ID)]
    (tmp_path / "requests.jsonl").write_text("".join(lines), "utf-8")
    database.make_tables(order)
    database.insert(lines)
    files = LiveFiles(tmp_path)
    stretch = Selection("samples", START_NS, START_NS + SECOND_NS)
    with run_relay(database.port) as (relay, port):
        address = f"clickhouse://127.0.0.1:{port}/{database.name}"
        shown = ClickHouse(address, database.environment, refresh_ns=3600 * SECOND_NS)
        for selection in (Selection("samples"), stretch):
            values = Answers(files).facets(selection)["facets"]
            assert Answers(shown).facets(selection)["facets"].keys() == values.keys()
            for name in FACETS:
                relay.questions = 0
                for value, weight in values[name]:
                    chosen = replace(selection, filters={name: frozenset({value})})
                    ours, theirs = (Answers(source).facets(chosen)["facets"] for source in (shown, files))
                    assert {each: dict(ours[each]) for each in FACETS} == {each: dict(theirs[each]) for each in FACETS}
                    assert Answers(shown).flame(chosen, inverted=False)["total"] == weight > 0
                assert (relay.questions > 0) == (name == "service" and selection == stretch)


def test_a_stretch_whose_spans_cannot_be_read_fails_alone_and_is_read_once(database: Database) -> None:
    def asked_by(ask: Callable[[], object]) -> int:
        relay.questions = 0
        ask()
        return relay.questions

    body = record_body(replace(small_profile(), time_ns=START_NS))
    database.make_tables("by_timestamp_time")
    span = span_line("SELECT", SPAN_ID, times_ns=(START_NS, START_NS)).replace(TRACE, TRACE_ID)
    database.insert([profile_line(body, time_ns=START_NS), span])
    stretches = [Selection("samples", START_NS, START_NS + seconds * SECOND_NS) for seconds in (1, 2)]
    with run_relay(database.port) as (relay, port):
        shown = ClickHouse(f"clickhouse://127.0.0.1:{port}/{database.name}", database.environment, refresh_ns=0)
        questions, new = asked_by(lambda: shown.recording_of(stretches[0])), asked_by(shown.refresh)
        relay.spoil_at = questions - 1  # the names of spans
        with pytest.raises(SourceError, match="ended its answer too early: ask again"):
            shown.recording_of(stretches[1])
        assert asked_by(shown.refresh) == new
        assert asked_by(lambda: shown.recording_of(stretches[1])) == 1
        found = [shown.recording_of(stretch).facet_values(stretch)["span"].values for stretch in stretches]
    assert found[0] == found[1]
    assert set(dict(found[0])) == {"SELECT", "(outside of spans)"}


def test_services_without_a_name_can_be_chosen(database: Database) -> None:
    database.make_tables("by_severity")
    spans = (span_line("GET /", times_ns=(START_NS, START_NS + 1), service=service) for service in ("", "shop"))
    database.insert([sample_line(time_ns=START_NS, service=""), sample_line(time_ns=START_NS), *spans])
    unnamed = ClickHouse(database.address, database.environment, service="unknown service")
    assert dict(unnamed.recording.facet_values(Selection("samples"))["service"].values) == {"unknown service": 1}
    source = ClickHouse(database.address, database.environment)
    shown = Answers(source)
    for services, count in ((["unknown service"], 1), (["unknown service", "shop"], 2), (["shop"], 1)):
        stretch = Selection("samples", START_NS, START_NS + SECOND_NS, {"service": frozenset(services)})
        assert shown.flame(stretch, inverted=False)["total"] == source.count_requests(stretch) == count
    assert unnamed.count_requests(Selection("samples")) == 1


def test_settings_by_which_what_is_not_there_is_null_change_nothing(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    settings = "join_use_nulls", "aggregate_functions_null_for_empty"
    for name in settings:
        database.do(f"SET {name} = 1")
    try:
        with pytest.raises(SourceError, match="has no records of the profiler"):
            ClickHouse(database.address, database.environment)
        traces = [f"{number:032x}" for number in (*range(1, 101), *range(102))]  # one is light
        database.insert(sample_line(time_ns=START_NS).replace(TRACE, trace) for trace in traces)
        shown = ClickHouse(database.address, database.environment)
        assert shown.count_requests(Selection("samples")) == 0
    finally:
        for name in settings:
            database.do(f"SET {name} = 0")
    assert dict(shown.recording.facet_values(Selection("samples"))["span"].values) == {"(span not received)": 202}


def test_a_trace_of_thousands_of_spans_is_counted_or_refused(database: Database) -> None:
    def add_spans(first: int, count: int) -> None:
        columns = f"now64(9), '{TRACE}', leftPad(hex(number), 16, '0'), 'step', 'shop'"
        database.do(
            "INSERT INTO otel_traces (Timestamp, TraceId, SpanId, SpanName, ServiceName)"
            f" SELECT {columns} FROM numbers({first}, {count})"
        )

    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=START_NS)])
    add_spans(0, 6000)
    shown = Answers(ClickHouse(database.address, database.environment))
    found = shown.trace(Selection("samples"), TRACE)
    assert (found["spans"], len(found["rows"])) == (6000, 2000)
    add_spans(6000, 100_000)
    with pytest.raises(SourceError, match="this trace has more than 100,000 spans"):
        shown.trace(Selection("samples"), TRACE)


def test_a_stretch_without_samples_is_empty(database: Database, tmp_path: Path, lines: list[str]) -> None:
    fill(database, lines, tmp_path)
    shown = Answers(ClickHouse(database.address, database.environment))
    for times_ns in ((0, 5), (10**18, 10), ((1 << 63) - 2, (1 << 63) - 1)):
        assert shown.flame(Selection("wall", *times_ns), inverted=False)["total"] == 0
        assert shown.top(Selection("wall", *times_ns), "")["rows"] == []
