"""The endpoint of a sample as text is the first span of its service in the trace, wherever both are kept."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clickhouse_tables import ORDERS, Database
from sample_stores import put, writing
from saved_samples import TRACE, sample_line, span_line

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import Baseline, Selection
from splunk_profiler.viewer.source import Source

SECOND_NS = 10**9
START_NS = (time.time_ns() - 1200 * SECOND_NS) // (30 * SECOND_NS) * 30 * SECOND_NS  # begins a step of an hour
SAMPLES = Selection("samples")
OTHER_TRACE = "f" * 32
ENDPOINTS = {"GET /cart": 3, "GET /price": 2, "GET /stock": 1, "POST /audit": 1, "resumed": 2, "(outside of spans)": 1}
# Name, id, parent and service of spans. The shop calls two endpoints of prices, and one of these the shop again.
SPANS = (
    ("GET /cart", "1", "", "shop"),
    ("fill", "2", "1", "shop"),
    ("render", "3", "2", "shop"),
    ("GET /price", "4", "2", "prices"),
    ("look up", "5", "4", "prices"),
    ("GET /stock", "6", "3", "prices"),
    ("POST /audit", "7", "5", "shop"),
    ("resumed", "8", "9", "shop"),  # whose parent was not received
    ("step", "a", "8", "shop"),
)


def span_lines(start_ns: int = START_NS) -> list[str]:
    """Return the spans, each of which is sent twice, and one of another trace with the ids of others."""
    times_ns = start_ns, start_ns + 5 * SECOND_NS
    lines = [
        span_line(name, 16 * span, 16 * parent if parent else "", times_ns, service=service)
        for name, span, parent, service in SPANS
    ]
    other = span_line("GET /other", 16 * "2", 16 * "1", times_ns, service="shop").replace(TRACE, OTHER_TRACE)
    return [*lines, *lines, other]


def sample_lines(start_ns: int = START_NS) -> list[str]:
    """Return a sample of each span, and one outside of them."""
    lines = [
        sample_line(time_ns=start_ns + place * SECOND_NS // 10, span=16 * span, service=service)
        for place, (_, span, _, service) in enumerate(SPANS)
    ]
    return [*lines, sample_line(time_ns=start_ns, span="")]


def shown_by(source: Source, selection: Selection) -> dict[str, Any]:
    """Return what the page says of endpoints."""
    answers = Answers(source)
    facets = answers.facets(selection)["facets"]
    of_endpoints = {
        endpoint: replace(selection, filters={**selection.filters, "endpoint": frozenset({endpoint})})
        for endpoint in ENDPOINTS
    }
    flames = {endpoint: answers.flame(chosen, inverted=False)["total"] for endpoint, chosen in of_endpoints.items()}
    of_cart = Baseline(of_endpoints["GET /cart"], "requests")
    compared = answers.flame(of_endpoints["GET /price"], False, of_cart)
    return {
        "facets": {name: dict(facets[name]) for name in ("endpoint", "span")},
        "flames": flames,
        "compared": (compared["total"], compared["before"]),
        "requests": {endpoint: source.count_requests(chosen) for endpoint, chosen in of_endpoints.items()},
    }


@pytest.mark.parametrize("order", ORDERS)
def test_endpoints_of_a_database_are_those_of_a_directory_and_a_store(
    database: Database, tmp_path: Path, order: str
) -> None:
    lines = [*span_lines(), *sample_lines()]
    (tmp_path / "requests.jsonl").write_text("".join(lines), "utf-8")
    with writing(tmp_path / "store.db") as writer:
        put(writer, *lines, received_ns=0)
        writer.run_maintenance(time.time_ns())
    database.make_tables(order)
    database.insert(lines)
    files, store = LiveFiles(tmp_path), LiveStore(tmp_path / "store.db")
    shown = ClickHouse(database.address, database.environment)
    of_stretch = replace(SAMPLES, since_ns=START_NS, until_ns=START_NS + SECOND_NS)
    of_trace = of_stretch.of_trace(TRACE)
    for selection in (SAMPLES, of_stretch):
        expected = shown_by(files, selection)
        assert expected["facets"]["endpoint"] == expected["flames"] == ENDPOINTS
        assert shown_by(shown, selection) == shown_by(store, selection) == expected
    assert shown_by(shown, of_trace)["facets"] == shown_by(files, of_trace)["facets"]


def test_an_older_trace_has_its_endpoints(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    old_ns = START_NS - 7200 * SECOND_NS
    older = [line.replace(TRACE, OTHER_TRACE) for line in (*span_lines(old_ns)[:-1], *sample_lines(old_ns))]
    database.insert([*older, sample_line(time_ns=START_NS)])
    shown = ClickHouse(database.address, database.environment)
    chosen = SAMPLES.of_trace(OTHER_TRACE)
    assert dict(Answers(shown).facets(chosen)["facets"]["endpoint"]) == ENDPOINTS


def test_the_endpoint_of_a_span_that_is_its_own_parent_is_its_name(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    times_ns = START_NS, START_NS + SECOND_NS
    database.insert([sample_line(time_ns=START_NS, span=16 * "1")])
    database.insert([span_line("loop", 16 * "1", 16 * "1", times_ns, service="shop")])
    shown = ClickHouse(database.address, database.environment).recording.facet_values(SAMPLES)
    assert dict(shown["endpoint"].values) == dict(shown["span"].values) == {"loop": 1}


def test_spans_deeper_than_a_chain_may_be_keep_the_question_short(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    database.insert(sample_line(time_ns=START_NS, span=f"{depth:016x}") for depth in (1, 150, 250))
    database.do(
        "INSERT INTO otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, SpanName, ServiceName)"
        f" SELECT fromUnixTimestamp64Nano({START_NS}), '{TRACE}', leftPad(lower(hex(number)), 16, '0'),"
        " if(number = 1, '', leftPad(lower(hex(number - 1)), 16, '0')), concat('step ', toString(number)), 'shop'"
        " FROM numbers(1, 1200)"
    )
    shown = ClickHouse(database.address, database.environment).recording.facet_values(SAMPLES)
    assert dict(shown["endpoint"].values) == {"step 1": 2, "step 250": 1}
