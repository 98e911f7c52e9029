"""Tables as the Collector's ClickHouse exporter makes them, and rows of OTLP/JSON as it writes them.

Imports nothing of the package, nor the engine: to import that blocks SIGPIPE.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from command_line import DEADLINE_S, clean_environment

USER, PASSWORD = "reader é%@example.com", "pässword %/@:#"  # of a server of the tests
MAP, JSON = "Map(LowCardinality(String), String)", "JSON"
# What differs between versions: the columns of the order, and the type of attributes.
ORDERS = {
    "by_timestamp_time": (
        ", TimestampTime DateTime DEFAULT toDateTime(Timestamp)",
        "ServiceName, TimestampTime, Timestamp",
        MAP,
    ),
    "by_severity": ("", "ServiceName, SeverityText, toUnixTimestamp(Timestamp), TraceId", MAP),
    "json": ("", "ServiceName, toDateTime(Timestamp), Timestamp", JSON),
}


class Database:
    """A database of a running server."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.name = name
        self.do(f"CREATE DATABASE IF NOT EXISTS {name}", "default")

    @property
    def address(self) -> str:
        """The address for `view`; user and password are in `environment`."""
        return f"clickhouse://127.0.0.1:{self.port}/{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """User and password of a reader."""
        return {"CLICKHOUSE_USER": USER, "CLICKHOUSE_PASSWORD": PASSWORD}

    def do(self, sql: str, database: str = "") -> str:
        """Run SQL and return the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/?{urlencode({'database': database or self.name})}",
            sql.encode(),
            {"Authorization": f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"},
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())

    def make_tables(self, order: str, *, with_traces: bool = True) -> None:
        """Make the tables of logs and of traces."""
        more, columns, attributes = ORDERS[order]
        self.do(
            "CREATE TABLE otel_logs (Timestamp DateTime64(9), TraceId String, SpanId String,"
            " SeverityText LowCardinality(String), ServiceName LowCardinality(String), Body String,"
            f" ResourceAttributes {attributes}, ScopeName String, LogAttributes {attributes}{more})"
            f" ENGINE = MergeTree PARTITION BY toDate(Timestamp) ORDER BY ({columns})"
        )
        if with_traces:
            self.do(
                "CREATE TABLE otel_traces (Timestamp DateTime64(9), TraceId String, SpanId String, ParentSpanId String,"
                f" SpanName LowCardinality(String), ServiceName LowCardinality(String), Duration UInt64,"
                f" ResourceAttributes {attributes}, SpanAttributes {attributes}) ENGINE = MergeTree"
                " PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), Timestamp)"
            )

    def make_profiles(self) -> None:
        """Make the table of profiles."""
        kinds = {
            "DateTime64(9)": ["Timestamp"],
            "LowCardinality(String)": ["SampleType", "SampleUnit", "ServiceName", "PeriodType", "PeriodUnit"],
            MAP: ["ResourceAttributes", "ProfileAttributes", "SampleAttributes"],
            "String": ["ProfileId", "ScopeName", "ScopeVersion", "TraceId", "SpanId"],
            "UInt64": ["StackHash", "DurationNano"],
            "Int64": ["Period"],
            "Array(LowCardinality(String))": ["FunctionNames", "FileNames", "MappingFileNames"],
            "Array(Int32)": ["LineNumbers"],
            "Array(Int64)": ["Values"],
            "Array(UInt64)": ["Addresses", "TimestampsUnixNano"],
        }
        columns = ", ".join(f"{name} {kind}" for kind, names in kinds.items() for name in names)
        self.do(
            f"CREATE TABLE otel_profiles ({columns}) ENGINE = MergeTree PARTITION BY toDate(Timestamp)"
            " ORDER BY (ServiceName, SampleType, toDateTime(Timestamp))"
        )

    def insert_rows(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Insert rows as they are in the table."""
        self.do(f"INSERT INTO {table} FORMAT JSONEachRow\n" + "\n".join(map(json.dumps, rows)))

    def insert(self, lines: Iterable[str]) -> None:
        """Insert requests of OTLP/JSON."""
        rows: dict[str, list[dict[str, Any]]] = {"otel_logs": [], "otel_traces": []}
        for line in lines:
            request = json.loads(line)
            for resource in request.get("resourceLogs", ()):
                rows["otel_logs"] += _logs(resource)
            for resource in request.get("resourceSpans", ()):
                rows["otel_traces"] += _spans(resource)
        for table, found in rows.items():
            if found:
                self.insert_rows(table, found)


@contextmanager
def run_server(directory: Path) -> Iterator[int]:
    """Run a server and yield its port."""
    server = Path(__file__).parent / "clickhouse_server.py"
    command = [sys.executable, str(server), str(directory), USER, PASSWORD]
    with subprocess.Popen(
        command, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()  # nothing of it is kept


def _logs(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    described = _attributes(resource.get("resource", {}))
    for scope in resource.get("scopeLogs", ()):
        for record in scope.get("logRecords", ()):
            yield {
                "Timestamp": time_text(record.get("timeUnixNano", "0")),
                "TraceId": record.get("traceId", ""),
                "SpanId": record.get("spanId", ""),
                "SeverityText": record.get("severityText", ""),
                "ServiceName": described.get("service.name", ""),
                "Body": record.get("body", {}).get("stringValue", ""),
                "ResourceAttributes": described,
                "ScopeName": scope.get("scope", {}).get("name", ""),
                "LogAttributes": _attributes(record),
            }


def _spans(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    described = _attributes(resource.get("resource", {}))
    for scope in resource.get("scopeSpans", ()):
        for span in scope.get("spans", ()):
            start_ns, end_ns = int(span.get("startTimeUnixNano", 0)), int(span.get("endTimeUnixNano", 0))
            yield {
                "Timestamp": time_text(start_ns),
                "TraceId": span["traceId"],
                "SpanId": span["spanId"],
                "ParentSpanId": span.get("parentSpanId", ""),
                "SpanName": span["name"],
                "ServiceName": described.get("service.name", ""),
                "ResourceAttributes": described,
                "SpanAttributes": _attributes(span),
                "Duration": max(0, end_ns - start_ns),
            }


def _attributes(holder: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: _text(each.get("value", {})) for each in holder.get("attributes", ())}


def _text(value: dict[str, Any]) -> str:
    if "arrayValue" in value:
        return json.dumps([_text(each) for each in value["arrayValue"].get("values", ())])
    return str(next(iter(value.values()), ""))


def time_text(nanoseconds: str | int) -> str:
    """Return a time as the engine reads it."""
    seconds, rest = divmod(int(nanoseconds), 10**9)
    return f"{seconds}.{rest:09d}"
