"""The viewer on ClickHouse's engine, with the tables of the Collector's exporter in each of their forms."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import CertificateFiles
from clickhouse_tables import ORDERS, PASSWORD, USER, Database
from command_line import UNREACHABLE_URL, splunk_profiler
from faulty_relay import FAULTS, run_relay
from profile_factory import SPAN_ID, TRACE_ID, record_body, small_profile
from sample_stores import of_version
from saved_samples import SPAN, TRACE, allocation_line, profile_line, sample_line, span_line

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.trees import top_table

OTHER_TRACE = "f" * 32
SAMPLES, WALL = Selection("samples"), Selection("wall")


def of(recording: Recording, *, without: str = "") -> dict[str, Any]:
    """Return what the page shows, but the distribution over time."""
    top = top_table(recording.stacks, recording.weights(WALL))
    facets = {name: dict(found.values) for name, found in recording.facet_values(WALL).items() if name != without}
    return {
        "values": (recording.values, recording.units),
        "facets": facets,
        "top": {(recording.functions[row.function], row.line, row.own, row.total) for row in top},
    }


@pytest.fixture(scope="module", params=["text", "pprof-gzip-base64"])
def batch(request: pytest.FixtureRequest, batch_folder: Callable[[str], Path]) -> tuple[Path, int]:
    """Return the folder with a batch job's records in one of the formats, and the report's count of samples."""
    directory = batch_folder(request.param)
    report = json.loads(splunk_profiler("report", directory, "--json").stdout)
    return directory, report["samples"] if request.param == "text" else report["profiles"]["samples"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_database_has_the_numbers_of_the_directory_and_of_its_report(
    database: Database, batch: tuple[Path, int], order: str
) -> None:
    directory, samples = batch
    lines = [line for file in sorted(directory.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]
    database.make_tables(order)
    database.insert(lines)
    files = LiveFiles(directory)
    files.refresh()
    shown = ClickHouse(database.address, database.environment, lag_ns=-(10**11))
    assert of(shown.recording) == of(files.recording)
    assert shown.unread == 0
    assert shown.recording.weights(SAMPLES).sum() == samples > 10
    for trace, spans in files.recording.spans.items():
        assert {(span.id, span.name, span.parent, span.start_ns) for span in shown.spans_of(trace)} == {
            (span.id, span.name, span.parent, span.start_ns) for span in spans.values()
        }


def now_ns(seconds_ago: float) -> int:
    return time.time_ns() - int(seconds_ago * 1e9)


def of_trace(line: str, trace: str) -> str:
    return line.replace(TRACE, trace)


def test_equal_samples_are_counted_in_the_database_by_step_of_time(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    start_ns = now_ns(600) // 30_000_000_000 * 30_000_000_000  # a step of an hour
    numbers = [sample_line(time_ns=start_ns + place * 10**9).replace("cpu=0", f"cpu={place}ms") for place in range(60)]
    database.insert([*numbers, span_line("GET /", times_ns=(start_ns, start_ns + 10**9), host_stacks=("q83vEg==",))])
    shown = ClickHouse(database.address, database.environment)
    assert shown.recording.count() == 2
    assert shown.recording.weights(SAMPLES).sum() == 60
    assert dict(shown.recording.facet_values(WALL)["endpoint"].values) == {"GET /": 60 * 10**9}
    assert dict(shown.recording.facet_values(WALL)["thread"].values) == {"main": 60 * 10**9}
    assert shown.spans_of(TRACE)[0].host_stacks == ("q83vEg==",)
    assert sum(shown.recording.timeline(WALL, "service", 10).series[0].weights) == 60 * 10**9


def test_samples_of_profiles_get_the_names_of_their_spans(database: Database) -> None:
    database.make_tables("json")
    time_ns = now_ns(600)
    database.insert([profile_line(record_body(small_profile()), time_ns=time_ns)])
    assert set(
        dict(ClickHouse(database.address, database.environment).recording.facet_values(SAMPLES)["span"].values)
    ) == {
        "(span not received)",
        "(outside of spans)",
    }
    database.insert([of_trace(span_line("SELECT", SPAN_ID, times_ns=(time_ns, time_ns)), TRACE_ID)])
    shown = ClickHouse(database.address, database.environment).recording
    assert set(dict(shown.facet_values(SAMPLES)["span"].values)) == {"SELECT", "(outside of spans)"}


def test_a_light_trace_is_read_when_it_is_asked_for(database: Database) -> None:
    database.make_tables("by_severity")
    time_ns = now_ns(600)
    heavy = [of_trace(sample_line(time_ns=time_ns), f"{number:032x}") for number in range(1, 101) for _ in range(3)]
    light = of_trace(sample_line("own.light(/light.py:3)", time_ns=time_ns), OTHER_TRACE)
    no_trace = of_trace(sample_line("own.untraced(/own.py:4)", time_ns=time_ns, span=""), "")
    database.insert([*heavy, light, *4 * [no_trace]])
    database.insert([of_trace(span_line("light", times_ns=(time_ns, time_ns + 5)), OTHER_TRACE)])
    shown = ClickHouse(database.address, database.environment)
    values, more = shown.recording.facet_values(SAMPLES)["trace"]
    assert (len(values), dict(values)[""], more) == (100, 4, 2)
    untraced = Selection("samples", filters={"trace": frozenset({""})})
    assert [row[0] for row in Answers(shown).top(untraced, "")["rows"]] == ["own.untraced"]
    series = shown.recording.timeline(SAMPLES, "trace", 10).series
    assert {"", "(other)"} < {name for name, _ in series}
    assert not shown.recording.has_trace(OTHER_TRACE)
    chosen = Selection("samples", filters={"trace": frozenset({OTHER_TRACE})})
    assert shown.recording.weights(chosen).sum() == 0
    assert of(shown.recording_of(chosen))["top"] == {(("own.light", "/light.py", "application"), 3, 1e9, 1e9)}
    facets = Answers(shown).facets(SAMPLES, "trace", OTHER_TRACE.upper())
    assert (facets["facets"], facets["more"]) == ({"trace": [(OTHER_TRACE, 1)]}, {"trace": 0})
    answer = Answers(shown).trace(SAMPLES, OTHER_TRACE)
    assert [row[:3] + row[6:7] for row in answer["rows"]] == [[SPAN, 0, "light", 1]]
    assert Answers(shown).flame(chosen, inverted=False)["total"] == 1
    assert Answers(shown).flame(SAMPLES, inverted=False)["total"] == 305


@pytest.mark.parametrize("order", ["by_timestamp_time", "json"])
def test_allocations_as_text_are_added_up_in_the_database(database: Database, order: str) -> None:
    database.make_tables(order)
    start_ns = now_ns(600) // 30_000_000_000 * 30_000_000_000
    database.insert([sample_line(time_ns=start_ns), *(allocation_line(each, time_ns=start_ns) for each in (700, 4096))])
    shown = ClickHouse(database.address, database.environment)
    assert shown.recording.count() == 2
    assert shown.recording.weights(Selection("alloc_space")).sum() == 4796
    assert shown.recording.weights(SAMPLES).sum() == 1
    assert shown.unread == 0


def test_requests_are_counted_in_the_database(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    time_ns = now_ns(600)
    times_ns = time_ns + 1, time_ns + 10**9
    database.insert(
        [
            sample_line(time_ns=time_ns),
            span_line("GET /", "1" * 16, times_ns=times_ns, service="shop"),
            span_line("query", "2" * 16, "1" * 16, times_ns, service="shop"),
            span_line("POST /pay", "3" * 16, "2" * 16, times_ns, service="billing"),
        ]
    )
    shown = ClickHouse(database.address, database.environment)
    assert shown.count_requests(WALL) == 2
    assert shown.count_requests(Selection("wall", filters={"service": frozenset({"shop", "other"})})) == 1
    assert shown.count_requests(Selection("wall", filters={"trace": frozenset({OTHER_TRACE})})) == 0
    assert shown.count_requests(Selection("wall", time_ns + 30 * 10**9)) == 0
    with pytest.raises(ValueError, match="remove the filter by thread"):
        shown.count_requests(Selection("wall", filters={"thread": frozenset({"main"})}))
    assert ClickHouse(database.address, database.environment, service="shop").count_requests(WALL) == 1
    assert shown.count_requests(Selection("wall", filters={"version": frozenset({""})})) == 2
    database.insert([of_version(span_line("step", "6" * 16, "1" * 16, times_ns, service="shop"), "1.1")])
    assert shown.count_requests(Selection("wall", filters={"version": frozenset({"1.1"})})) == 0  # of another's request
    hour_ns = 3600 * 10**9
    for parent, before_ns in (("4", hour_ns - 10**9), ("5", 2 * hour_ns)):  # the latter is too long before to be read
        began_ns = time_ns - before_ns
        database.insert(
            [
                span_line("job", parent * 16, times_ns=(began_ns, time_ns + 10**9), service="shop"),
                span_line("step", f"{parent:a<16}", parent * 16, times_ns, service="shop"),
            ]
        )
    assert shown.count_requests(WALL) == 3


def test_only_the_last_hours_and_one_service_are_read(database: Database) -> None:
    database.make_tables("json")
    database.insert(
        [
            sample_line(time_ns=now_ns(600)),
            sample_line(time_ns=now_ns(3 * 3600), service="old"),
            sample_line(time_ns=now_ns(700), service="other's \\ \n\t{x:String}"),
        ]
    )

    def services(**options: Any) -> set[str]:
        found = (
            ClickHouse(database.address, database.environment, **options)
            .recording.facet_values(SAMPLES)["service"]
            .values
        )
        return {name for name, _ in found}

    table = ClickHouse(database.address, database.environment)
    since_s = (table.recording.period_ns()[1] - 3600 * 10**9) // (30 * 10**9) * 30
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s))
    assert table.note == f"Records before {since} are not shown: see --last-hours."
    assert table.follows
    assert services() == {"shop", "other's \\ \n\t{x:String}"}
    assert services(last_hours=4) == {"shop", "old", "other's \\ \n\t{x:String}"}
    assert services(service="other's \\ \n\t{x:String}") == {"other's \\ \n\t{x:String}"}
    with pytest.raises(SourceError, match="has no records of the profiler of ' OR 1=1 -- in otel_logs"):
        services(service="' OR 1=1 --")


def test_the_hours_before_a_time_are_shown_and_do_not_grow(database: Database) -> None:
    database.make_tables("by_severity")
    until_ns = now_ns(26 * 3600)
    before = [sample_line("own.before(/own.py:3)", time_ns=until_ns - hours * 3600 * 10**9 - 1) for hours in (0, 1, 3)]
    database.insert([*before, sample_line("own.then(/own.py:3)", time_ns=until_ns), sample_line(time_ns=now_ns(60))])
    shown = ClickHouse(database.address, database.environment, last_hours=2, until_ns=until_ns, refresh_ns=0)
    assert not shown.follows
    assert shown.recording.weights(SAMPLES).sum() == 2
    version = shown.version
    shown.refresh()
    assert (shown.version, shown.recording.weights(SAMPLES).sum()) == (version, 2)
    assert ClickHouse(database.address, database.environment, last_hours=30).recording.count() > 3
    records = "records of the profiler in otel_logs before 2026-01-02 03:04"
    said = f"{shown.name} has no {records}: does the Collector write there?"
    asked = splunk_profiler("view", database.address, "--until", "2026-01-02T03:04", env=database.environment)
    assert (asked.returncode, asked.stderr) == (1, f"splunk-profiler: error: {said}\n")
    for wrong, said in (
        ("yesterday", "'yesterday' does not match"),
        ("0001-01-01", "0001-01-01T00:00:00 is not between 1971 and 2261"),
        ("9999-01-01", "9999-01-01T00:00:00 is not between 1971 and 2261"),
    ):
        asked = splunk_profiler("view", database.address, "--until", wrong)
        assert (asked.returncode, said in asked.stderr) == (2, True)


def test_a_question_that_fails_loses_no_record_and_counts_none_twice(database: Database) -> None:
    def insert(*functions: str) -> None:
        time_ns = time.time_ns()
        samples = [sample_line(f"own.{function}(/own.py:3)", time_ns=time_ns) for function in functions]
        database.insert([*samples, profile_line(profile, time_ns=time_ns)])

    profile = record_body(small_profile())
    database.make_tables("by_timestamp_time")
    spans = span_line("GET /", times_ns=(now_ns(600), 0)), span_line("SELECT", SPAN_ID, times_ns=(now_ns(600), 0))
    database.insert([sample_line(time_ns=now_ns(600)), spans[0], of_trace(spans[1], TRACE_ID)])
    with run_relay(database.port) as (relay, port):
        address = f"clickhouse://127.0.0.1:{port}/{database.name}"
        shown = ClickHouse(address, database.environment, refresh_ns=0, lag_ns=0)
        relay.questions = 0
        shown.refresh()
        questions = relay.questions + 1  # the last for the names of spans, of which there were none
        for place in range(questions):
            insert("first", f"number_{place}")
            relay.spoil_at = place
            with pytest.raises(SourceError, match="ended its answer too early: ask again"):
                shown.refresh()
            shown.refresh()
    everything = ClickHouse(database.address, database.environment, lag_ns=0)
    assert of(shown.recording) == of(everything.recording)
    assert dict(shown.recording.facet_values(SAMPLES)["span"].values).keys() == {
        "GET /",
        "SELECT",
        "(outside of spans)",
    }
    assert shown.recording.weights(SAMPLES).sum() > 2 * questions > 6
    assert shown.unread == everything.unread == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_whole_answer_is_an_error(database: Database, fault: str) -> None:
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=now_ns(600))])
    with run_relay(database.port) as (relay, port):
        relay.fault, relay.spoil_at = FAULTS[fault], 0
        with pytest.raises(SourceError, match=relay.fault.said):
            ClickHouse(f"clickhouse://127.0.0.1:{port}/{database.name}", database.environment)


def test_an_error_of_the_database_is_said_without_the_question(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=now_ns(600))])
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    database.do("DROP TABLE otel_logs")
    with pytest.raises(SourceError, match=r"answers 404: Code: 60\. DB::Exception: .*'otel_logs'") as raised:
        shown.refresh()
    assert "SELECT" not in str(raised.value)


def test_records_that_are_no_samples_are_left_out_or_counted(database: Database) -> None:
    database.make_tables("by_timestamp_time", with_traces=False)
    good = sample_line(time_ns=now_ns(600))
    attribute = '"attributes": [{"key": "source.event.period"'
    assert attribute in good

    def described(name: str, value: str) -> str:
        more = json.dumps({"key": name, "value": {"stringValue": value}})
        return good.replace(attribute, attribute.replace("[", f"[{more}, "))

    database.insert(
        [
            good,
            described("profiling.instrumentation.source", "snapshot"),
            described("profiling.data.format", "pprof-gzip-base64"),
            good.replace('\\"main\\"', "main"),
            good.replace("otel.profiling", "application"),
        ]
    )
    shown = ClickHouse(database.address, database.environment)
    assert shown.recording.weights(SAMPLES).sum() == 1
    assert shown.unread == 2
    assert dict(shown.recording.facet_values(SAMPLES)["endpoint"].values) == {"(span not received)": 1}
    assert shown.spans_of(TRACE) == []


def test_hostile_names_are_names(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    names = ["<script>alert(1)</script>", "x" * 10_000, "\U0001f525", "\u202egnp.exe", "'\"`${alert}`\\", "a\\x00b"]
    time_ns = now_ns(600)
    for place, name in enumerate(names, 1):
        sample = sample_line(f"m.{name}(/a.py:1)", service=name, time_ns=time_ns, span=f"{place:016x}")
        database.insert([sample, span_line(name, f"{place:016x}", times_ns=(time_ns, time_ns))])
    shown = ClickHouse(database.address, database.environment)
    for facet in ("service", "endpoint"):
        assert {name for name, _ in shown.recording.facet_values(SAMPLES)[facet].values} == set(names)


def test_what_is_wrong_is_said_without_the_password(database: Database) -> None:
    def error(address: str, **environment: str) -> str:
        with pytest.raises(SourceError) as raised:
            ClickHouse(address, {**database.environment, **environment})
        assert PASSWORD not in str(raised.value)
        assert "hidden" not in str(raised.value)
        return str(raised.value)

    server = f"http://127.0.0.1:{database.port}"
    missing = f"{server}/{database.name} has no table otel_logs: the Collector makes it with the first records"
    assert error(database.address) == missing
    database.make_tables("by_severity")
    nothing = f"{server}/{database.name} has no records of the profiler in otel_logs: does the Collector write there?"
    assert error(database.address) == nothing
    assert error(f"clickhouse://127.0.0.1:{database.port}/missing") == f"{server}/missing: there is no such database"
    unreachable = UNREACHABLE_URL.partition("://")[2]
    assert "cannot be reached" in error(f"clickhouse://me:hidden@{unreachable}/otel")
    for host in ("a..b", "\udcff"):
        assert f"http://{host}:8123/otel cannot be reached: " in error(f"clickhouse://me:hidden@{host}/otel")
    assert error(f"{database.address}\udcff") == f"{server}/{database.name}\udcff: there is no such database"
    refused = error(f"clickhouse://me:hidden@127.0.0.1:{database.port}/{database.name}")
    assert "refuses the user me: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD" in refused
    for address in (
        "clickhouse://host",
        "clickhouse:///otel",
        "clickhouse://host:port/otel",
        "clickhouses://host/otel?hidden=1",
        "clickhouse://me:hidden@[::1/otel",
    ):
        assert "is not of the form" in error(address)
    for password in ("hidden", f"{PASSWORD}\n", "hidden\udcff"):  # a secret in a file may have a line's end
        said = error(database.address, CLICKHOUSE_PASSWORD=password)
        assert f"refuses the user {USER}: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD" in said
    no_colon = "the user of ClickHouse must not have a colon: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD"
    assert error(database.address, CLICKHOUSE_USER="me:hidden") == no_colon


def test_a_server_is_asked_over_tls_if_its_certificate_is_trusted(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = CertificateFiles(tmp_path)
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=now_ns(600))])
    with run_relay(database.port, certificates) as (_, port):
        address = f"clickhouses://localhost:{port}/{database.name}"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.untrusted_authority))
        with pytest.raises(SourceError, match=rf"https://localhost:{port}/{database.name} cannot be reached: .*verify"):
            ClickHouse(address, database.environment)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        assert ClickHouse(address, database.environment).recording.count() == 1
        with pytest.raises(SourceError, match=r"cannot be reached: .*mismatch"):
            ClickHouse(address.replace("localhost", "127.0.0.1"), database.environment)


def test_the_page_can_be_saved_from_a_database(database: Database, tmp_path: Path) -> None:
    database.make_tables("by_timestamp_time")
    database.insert([sample_line("own.function(/own.py:3)", time_ns=now_ns(600))])
    page = tmp_path / "page.html"
    saved = splunk_profiler("view", database.address, "--html", page, env=database.environment)
    assert saved.returncode == 0
    assert saved.stderr.startswith("Records before ")
    content = page.read_text("utf-8")
    assert "own.function" in content
    assert saved.stderr.strip() in content
    assert PASSWORD not in content
    failed = splunk_profiler("view", database.address, "--service", "nothing", env=database.environment)
    assert (failed.returncode, failed.stdout) == (1, "")
    said = f"http://127.0.0.1:{database.port}/{database.name} has no records of the profiler of nothing in otel_logs"
    assert failed.stderr == f"splunk-profiler: error: {said}: does the Collector write there?\n"
