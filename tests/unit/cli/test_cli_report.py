"""Tests of the report: counts and output."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from short_programs import run_code

from splunk_profiler.cli.analysis import Analysis, analyse
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.report import draw, to_dict
from splunk_profiler.cli.terminal import Terminal
from splunk_profiler.stream.records import HEADER
from splunk_profiler.viewer.otlp_files import SourceError

TRACE = "0af7651916cd43dd8448eb211c80319c"
BUSY = ("shop.pricing.rank(/srv/shop/pricing.py:9)", "shop.app.search(/srv/shop/app.py:4)")
IDLE = ("threading.Condition.wait(/usr/lib/python3.11/threading.py:327)",)
RECURSIVE = ("m.walk(/srv/m.py:3)", "m.walk(/srv/m.py:4)", "m.walk(/srv/m.py:4)")


def record(calls: tuple[str, ...], span: str = "", *, running: bool = True, thread: str = "worker") -> dict[str, Any]:
    status = "running\n   python.Thread.State: RUNNABLE" if running else "waiting\n   python.Thread.State: WAITING"
    lines = "".join(f"\tat {call}\n" for call in calls)
    body = f'"{thread}" #3 prio=0 os_prio=0 cpu=1.00ms elapsed=2.00s tid=0x1 nid=0x2 {status}\n{lines}'
    ids = {"traceId": TRACE, "spanId": span} if span else {}
    period = {"key": "source.event.period", "value": {"intValue": "100"}}
    return {"timeUnixNano": "1700000000000000000", "body": {"stringValue": body}, "attributes": [period], **ids}


def logs(*records: dict[str, Any], scope: str = "otel.profiling") -> str:
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return json.dumps(
        {"resourceLogs": [{"resource": service, "scopeLogs": [{"scope": {"name": scope}, "logRecords": records}]}]}
    )


def spans(**names: str) -> str:
    entries = [{"traceId": TRACE.upper(), "spanId": span, "name": name} for span, name in names.items()]
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": entries}]}]})


def saved(directory: Path, *lines: str) -> Analysis:
    (directory / "logs.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return analyse(directory)


def drawn(analysis: Analysis, width: int = 100) -> str:
    output = io.StringIO()
    draw(analysis, Path("profiles"), console=Terminal(file=output, width=width))
    return output.getvalue()


def test_samples_are_joined_to_the_names_of_their_spans(tmp_path: Path) -> None:
    analysis = saved(
        tmp_path,
        logs(record(BUSY, "00000000000000aa"), record(BUSY, "00000000000000bb"), record(IDLE, running=False)),
        spans(**{"00000000000000AA": "GET /search", "00000000000000BB": "GET /search"}),
    )
    assert (analysis.samples, analysis.in_spans) == (3, 2)
    assert set(analysis.by_span) == {"GET /search"}
    tally = analysis.by_span["GET /search"]
    assert tally.ran.own == {"shop.pricing.rank": 2}
    assert tally.ran.total == {"shop.pricing.rank": 2, "shop.app.search": 2}
    assert tally.thread_ns == 200_000_000
    assert analysis.outside.waited.own == {"threading.Condition.wait": 1}


def test_samples_whose_span_was_not_received_are_counted_apart(tmp_path: Path) -> None:
    analysis = saved(tmp_path, logs(record(BUSY, "00000000000000aa")), spans())
    assert (analysis.in_spans, analysis.unknown_span.samples, analysis.by_span) == (1, 1, {})
    assert "span unknown" in drawn(analysis)


def test_a_function_that_calls_itself_counts_once_for_each_sample(tmp_path: Path) -> None:
    analysis = saved(tmp_path, logs(record(RECURSIVE)))
    assert analysis.outside.ran.total == {"m.walk": 1}
    assert analysis.outside.ran.place("m.walk") == ("/srv/m.py", 3)


def test_other_logs_other_formats_and_broken_lines_are_only_counted(tmp_path: Path) -> None:
    packed = {**record(BUSY), "body": {"stringValue": "H4sIAAAAAAAA/w=="}}
    analysis = saved(
        tmp_path,
        logs(record(BUSY), packed),
        logs({"body": {"stringValue": "hello"}}, scope="app"),
        '{"resourceLogs":[{"half a',
        "not JSON at all",
    )
    assert (analysis.samples, analysis.unread, analysis.other_logs, analysis.broken_lines) == (1, 1, 1, 2)
    text = drawn(analysis)
    assert "1 records whose body is no call stack and no profile" in text
    assert "2 lines that are not OTLP/JSON" in text


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all parts of a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    """Return the value with another part at that path."""
    if not path:
        return part
    value[path[0]] = replaced(value[path[0]], path[1:], part)
    return value


OTHERS: list[Any] = [None, 1e400, "x", [], {"a": 1}, [None], 10**30]


def test_json_of_any_shape_does_not_end_the_report(tmp_path: Path) -> None:
    whole = (
        logs(record(BUSY, "00000000000000aa"), record(IDLE, running=False)),
        transactions(root("00000000000000aa", "AA", "BB"), INNER),
    )
    seen: set[bytes] = set()  # most of what is broken leaves the same numbers
    for part, broken in product(OTHERS, whole):
        for path in places(json.loads(broken)):
            line = json.dumps(replaced(json.loads(broken), path, part))
            analysis = saved(tmp_path, *whole, line)
            if (numbers := pickle.dumps(analysis)) not in seen:
                seen.add(numbers)
                drawn(analysis)
                json.dumps(to_dict(analysis, tmp_path))


def test_a_time_that_no_calendar_has_does_not_end_the_report(tmp_path: Path) -> None:
    analysis = saved(tmp_path, logs({**record(BUSY), "timeUnixNano": "9" * 30}), "[" * 100_000 + '"resourceLogs"')
    assert "samples received" in drawn(analysis)


@pytest.mark.parametrize("kind", ["text", "pprof-gzip-base64"])
def test_records_of_selected_traces_are_counted_and_in_no_other_number(tmp_path: Path, kind: str) -> None:
    closely = record(BUSY, "00000000000000aa")
    said = {"profiling.instrumentation.source": "snapshot", "profiling.data.format": kind}
    closely["attributes"] += [{"key": key, "value": {"stringValue": value}} for key, value in said.items()]
    line = "2 records of these alone"
    analysis = saved(tmp_path, logs(record(BUSY), closely, closely))
    assert (analysis.samples, analysis.in_spans, analysis.snapshots, analysis.unread) == (1, 0, 2, 0)
    assert (analysis.services, analysis.profiles.records) == ({"shop": 1}, 0)
    assert line in drawn(analysis)
    alone = saved(tmp_path, logs(closely, closely))
    assert line in drawn(alone)
    assert to_dict(alone, tmp_path)["snapshot_records"] == 2


@pytest.mark.parametrize("kind", ["text", "pprof-gzip-base64"])
def test_records_of_another_data_type_are_counted_and_in_no_other_number(tmp_path: Path, kind: str) -> None:
    allocated = record(BUSY, "00000000000000aa")
    said = {"profiling.data.type": "other", "profiling.data.format": kind}
    allocated["attributes"] += [{"key": key, "value": {"stringValue": value}} for key, value in said.items()]
    line = "2 records of type other"
    analysis = saved(tmp_path, logs(record(BUSY), allocated, allocated))
    assert (analysis.samples, analysis.in_spans, analysis.snapshots, analysis.unread) == (1, 0, 0, 0)
    assert (analysis.services, analysis.profiles.records) == ({"shop": 1}, 0)
    assert line in drawn(analysis)
    alone = saved(tmp_path, logs(allocated, allocated))
    assert line in drawn(alone)
    assert to_dict(alone, tmp_path)["records_by_other_type"] == {"other": 2}


def test_records_that_lack_a_time_a_period_or_a_body_do_not_end_the_report(tmp_path: Path) -> None:
    bare = {"body": record(BUSY)["body"], "attributes": [{"key": "source.event.period", "value": {"stringValue": "x"}}]}
    analysis = saved(tmp_path, logs(bare, {}, {"body": None}))
    assert (analysis.samples, analysis.unread, analysis.outside.thread_ns) == (1, 2, 0)
    assert "samples received" in drawn(analysis)


def test_a_file_can_be_named_in_place_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(logs(record(BUSY)) + "\n", "utf-8")
    assert analyse(path).samples == 1


def test_nothing_to_read_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        analyse(tmp_path / "missing")
    with pytest.raises(SourceError, match="splunk-profiler collect --output"):
        analyse(tmp_path)
    with pytest.raises(CommandError, match=r"no samples in .* splunk-profiler doctor"):
        saved(tmp_path, spans())
    (tmp_path / "shop.pprof").write_bytes(b"\x1f\x8b")
    with pytest.raises(CommandError, match=r"no samples in .* it is a profile: see splunk-profiler view"):
        analyse(tmp_path / "shop.pprof")


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("", b"", "splunk-profiler view "),
        ("week.db", b"SQLite format 3\0", "splunk-profiler view "),
        ("kept", HEADER, "splunk-profiler replay "),
    ],
)
def test_what_another_command_reads_is_named_with_it(tmp_path: Path, name: str, content: bytes, advice: str) -> None:
    (tmp_path / (name or "shop-1.pprof")).write_bytes(content)
    with pytest.raises(CommandError, match=f"report does not read.*{advice}{tmp_path / name}$"):
        analyse(tmp_path / name)


def test_a_person_sees_shares_functions_threads_and_a_whole_record(tmp_path: Path) -> None:
    busy = [record(BUSY, "00000000000000aa") for _ in range(3)]
    idle = [record(IDLE, running=False, thread="pool-0")]
    text = drawn(saved(tmp_path, logs(*busy, *idle), spans(**{"00000000000000aa": "GET /search"})))
    assert "75 % (3 samples)" in text
    assert "Hottest functions in GET /search" in text
    assert " pricing.py:9" in text
    assert "pool-0" in text
    assert '"spanId": "00000000000000aa"' in text
    assert "at shop.app.search(/srv/shop/app.py:4)" in text
    assert str(tmp_path / "logs.jsonl") in text


def section(text: str, title: str) -> str:
    """Return the text below that heading."""
    return text.partition(f"{title} ")[2].partition("\n\n")[0]


def test_what_ran_comes_first_and_what_waited_is_shown_apart(tmp_path: Path) -> None:
    waits = [record((*IDLE, *BUSY), "00000000000000aa", running=False) for _ in range(5)]
    idle = [record(IDLE, running=False, thread=f"pool-{number}") for number in range(9)]
    busy = [record(BUSY, "00000000000000aa", thread="busy"), *(record(BUSY, "00000000000000bb") for _ in range(2))]
    names = {"00000000000000aa": "GET /search", "00000000000000bb": "GET /rank"}
    text = drawn(saved(tmp_path, logs(*idle, *waits, *busy), spans(**names)))
    assert "18 % (3 samples), the others waited" in text
    for title in ("Hottest functions in GET /rank", "Hottest functions in GET /search"):
        assert "shop.pricing.rank" in section(text, title)
        assert "Condition.wait" not in section(text, title)
    assert "Hottest functions outside of spans" not in text, "nothing ran there"
    rows = section(text, "Spans").splitlines()
    assert [row.split()[:3] for row in rows if row.startswith("GET")] == [
        ["GET", "/rank", "2"],
        ["GET", "/search", "1"],
    ]
    waited = [row.split() for row in section(text, "Where threads waited").splitlines()]
    assert ["GET", "/search", "5", "36", "%"] in waited
    assert ["threading.Condition.wait", "5", "100", "%", "shop.pricing.rank"] in waited
    assert ["outside", "of", "spans", "9", "64", "%"] in waited
    assert text.index("Hottest functions") < text.index("Where threads waited") < text.index("Threads")
    assert section(text, "Threads").index("busy") < section(text, "Threads").index("pool-0")


def test_where_nothing_waited_the_report_does_not_speak_of_it(tmp_path: Path) -> None:
    assert "Where threads waited" not in drawn(saved(tmp_path, logs(record(BUSY))))


def test_tables_fit_into_100_columns_however_long_names_are(tmp_path: Path) -> None:
    long = tuple(f"package.{'module' * 30}.Class.method{n}(/srv/{'directory' * 20}/file.py:1)" for n in range(3))
    names = {"00000000000000aa": "GET /" + "segment/" * 40}
    analysis = saved(tmp_path, logs(record(long, "00000000000000aa", thread="thread " * 40)), spans(**names))
    for line in drawn(analysis).split("One record as received")[0].splitlines():
        assert len(line) <= 100


def transactions(*entries: dict[str, Any]) -> str:
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": entries}]}]})


def root(span: str, *stacks: str, **more: Any) -> dict[str, Any]:
    value = {"arrayValue": {"values": [{"stringValue": stack} for stack in stacks]}}
    attributes = [{"key": "http.route", "value": {"stringValue": "/"}}]
    attributes += [{"key": "elastic.profiler_stack_trace_ids", "value": value}] if stacks else []
    return {"traceId": TRACE, "spanId": span, "name": f"root {span}", "attributes": attributes, **more}


REMOTE, LOCAL = 0x300, 0x100
INNER = root("00000000000000dd", parentSpanId="00000000000000aa", flags=LOCAL | 1)


def test_what_a_host_profiler_has_sent_back_is_counted_on_the_transactions(tmp_path: Path) -> None:
    behind_another = root("00000000000000cc", "CC", parentSpanId="00000000000000ff", flags=REMOTE | 1)
    spans = transactions(root("00000000000000aa", "AA", "BB", "AA"), root("00000000000000bb"), behind_another, INNER)
    analysis = saved(tmp_path, logs(record(BUSY)), spans)
    found = analysis.transactions
    assert (found.received, found.with_ids, found.ids) == (3, 2, 4)
    text = drawn(analysis)
    assert "67 % of the transactions (2 of 3) carry stack-trace ids from it, 4 in all" in text
    assert "root 00000000000000aa" in text
    assert "AA  2 times" in text
    data = to_dict(analysis, tmp_path)
    assert [data[key] for key in ("transactions", "transactions_with_stack_traces", "stack_trace_ids")] == [3, 2, 4]


def test_where_no_host_profiler_was_the_report_does_not_speak_of_one(tmp_path: Path) -> None:
    analysis = saved(tmp_path, logs(record(BUSY)), transactions(root("00000000000000aa"), INNER))
    assert (analysis.transactions.received, analysis.transactions.with_ids) == (1, 0)
    assert "host profiler" not in drawn(analysis)


def test_a_transaction_whose_attribute_is_none_is_one_without_stack_traces(tmp_path: Path) -> None:
    key = "elastic.profiler_stack_trace_ids"
    kinds: list[dict[str, Any]] = [
        {},
        {"value": None},
        {"value": {}},
        {"value": {"arrayValue": {}}},
        {"value": {"stringValue": "AA"}},
    ]
    spans = [{"spanId": f"{number:016x}", "attributes": [{"key": key, **kind}]} for number, kind in enumerate(kinds)]
    found = saved(tmp_path, logs(record(BUSY)), transactions(*spans)).transactions
    assert (found.received, found.with_ids) == (5, 0)


def test_of_many_different_stack_traces_a_few_are_shown(tmp_path: Path) -> None:
    many = root("00000000000000aa", *(f"id-{number}" for number in range(9)))
    assert "and 4 more" in drawn(saved(tmp_path, logs(record(BUSY)), transactions(many)))


def test_text_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    text = drawn(saved(tmp_path, logs(record(("m.f([red]x.py:1)",), thread="[bold]t[/bold] :smile:"))))
    assert "[bold]t[/bold] :smile:" in text


def test_the_numbers_are_to_be_had_as_json(tmp_path: Path) -> None:
    analysis = saved(tmp_path, logs(record(BUSY, "00000000000000aa")), spans(**{"00000000000000aa": "GET /search"}))
    data = json.loads(json.dumps(to_dict(analysis, tmp_path)))
    assert data["share_in_spans"] == 1.0
    assert data["by_span"]["GET /search"]["functions"][0] == {
        "function": "shop.pricing.rank",
        "file": "/srv/shop/pricing.py",
        "line": 9,
        "own": 1,
        "total": 1,
    }
    assert (data["samples_running"], data["by_span"]["GET /search"]["waiting_functions"]) == (1, [])
    assert data["record"]["as_received"]["spanId"] == "00000000000000aa"


def test_report_loads_nothing_of_the_extra_view() -> None:
    extra = ("numpy", "starlette", "uvicorn")
    said = run_code(f"import splunk_profiler.cli.report, sys; print([name for name in {extra} if name in sys.modules])")
    assert said == "[]\n"
