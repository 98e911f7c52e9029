"""The spans of a store: by trace, and those that are requests by time, so that they can be counted.

A request is the first span of its service in a trace. Names are in JSON, as all text of the store. Spans are deleted
before samples: where only these are left, requests cannot be counted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

from splunk_profiler.viewer.columns import is_span_key
from splunk_profiler.viewer.model import NEVER_NS, TRACE, Selection, Span, SpanKey
from splunk_profiler.viewer.records import RecordReader
from splunk_profiler.viewer.source import count_requests, first_span, first_spans

_INDEX = "CREATE INDEX first_spans_by_time ON first_spans (start_ns, service, version, name, trace)"
# The end of the newest span that was deleted. Older formats do not say it: then it is the end of what is summed, though
# spans of whole samples may be deleted too, where the store has reached its size.
_FIND_DELETED = "SELECT coalesce(max(until_ns), 0) AS until_ns FROM parts WHERE is_summed"
_ADD_DELETED = f"CREATE TABLE deleted_spans AS {_FIND_DELETED};\n"
SCHEMA = f"""
CREATE TABLE first_spans (
    trace TEXT, id TEXT, start_ns INTEGER, end_ns INTEGER, service TEXT, name TEXT, version TEXT,
    PRIMARY KEY (trace, id)
) WITHOUT ROWID;
{_INDEX};
{_ADD_DELETED}"""
_NO_VERSION = "'\"\"'"  # in SQL
_ADD_VERSIONS = f"""
ALTER TABLE first_spans ADD COLUMN version TEXT DEFAULT {_NO_VERSION};
DROP INDEX first_spans_by_time;
{_INDEX};
"""
_KEY_BYTES = 250  # of a span in all tables and indexes, besides its content
# By what requests are counted.
_COLUMNS = {"service": "service", "version": "version", "endpoint": "name", TRACE: "trace"}


def upgrade(connection: sqlite3.Connection) -> None:
    """Add what older formats do not have, in a transaction of the caller; spans that are there have no version."""
    columns = _columns(connection)
    missing = _ADD_DELETED if "version" in columns else _ADD_VERSIONS + _ADD_DELETED
    for statement in (missing if columns else SCHEMA).split(";"):
        connection.execute(statement)
    if not columns:
        _find_first(connection, _traces(connection))


def add_spans(connection: sqlite3.Connection, spans: Mapping[str, Mapping[str, Span]], until_ns: int) -> int:
    """Add spans, by trace and id; return how many were left out, which end later or have no ids of OpenTelemetry."""
    rows = [
        (trace, span.id, span.end_ns, json.dumps(list(span), separators=(",", ":")))
        for trace, of_trace in spans.items()
        for span in of_trace.values()
        if is_span_key((trace, span.id)) and span.end_ns < until_ns
    ]
    connection.executemany("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?)", rows)
    _find_first(connection, {trace for trace, *_ in rows})
    return sum(map(len, spans.values())) - len(rows)


def delete_spans(connection: sqlite3.Connection, before_ns: int, most: int) -> int:
    """Delete the oldest spans, at most so many that ended before that time, and return how many they were."""
    oldest = "SELECT trace, id, end_ns FROM spans WHERE end_ns < ? ORDER BY end_ns LIMIT ?"
    found = connection.execute(oldest, (before_ns, most)).fetchall()
    for table in ("spans", "first_spans"):
        connection.executemany(f"DELETE FROM {table} WHERE trace = ? AND id = ?", [key for *key, _ in found])
    if found:
        connection.execute("UPDATE deleted_spans SET until_ns = max(until_ns, ?)", found[-1][2:])
    return len(found)


def measure_spans(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many spans there are, and about how many bytes they take."""
    ((count, length),) = connection.execute("SELECT count(*), coalesce(sum(length(content)), 0) FROM spans")
    return count, count * _KEY_BYTES + length


def read_spans(connection: sqlite3.Connection, trace: str) -> dict[str, Span]:
    """Return the spans of a trace by their id."""
    rows = connection.execute("SELECT id, content FROM spans WHERE trace = ?", (trace,))
    return {span: _read(content) for span, content in rows}


def read_some_spans(connection: sqlite3.Connection, keys: Iterable[SpanKey]) -> dict[SpanKey, Span]:
    """Return those spans that the store has."""
    found = {}
    for key in keys:
        if is_span_key(key):
            for (content,) in connection.execute("SELECT content FROM spans WHERE trace = ? AND id = ?", key):
                found[key] = _read(content)
    return found


def add_stored_spans(connection: sqlite3.Connection, reader: RecordReader) -> None:
    """Give a reader the spans that its samples wait for, and those above them, as far as the store has them."""
    while found := read_some_spans(connection, reader.unnamed_spans()):
        reader.add_spans(found)


def read_endpoint(connection: sqlite3.Connection, trace: str, span: Span) -> str:
    """Return the name of the first span of a span's service in its trace."""
    return first_span(span, lambda parent: read_some_spans(connection, [(trace, parent)]).get((trace, parent))).name


def count_stored_requests(
    connection: sqlite3.Connection, selection: Selection, added: Mapping[str, Mapping[str, Span]]
) -> int:
    """Count the spans that begin in the time of a selection and are the first of their service in a trace.

    Args:
        connection: to the store, whose spans are counted.
        selection: with filters by service, version, endpoint and trace alone.
        added: spans that are not in the store yet, and are counted too: by trace, then by their id.
    """
    stored = {trace: read_spans(connection, trace) for trace in added if is_span_key((trace, ""))}
    together = {trace: {**stored.get(trace, {}), **spans} for trace, spans in added.items()}
    columns = _columns(connection)
    if not columns:
        stored = {trace: read_spans(connection, trace) for trace in _traces(connection)}
        return count_requests({**stored, **together}, selection)
    until_ns = NEVER_NS if selection.until_ns is None else selection.until_ns
    conditions = ["start_ns >= ?", "start_ns < ?"]
    parameters: list[int | str] = [selection.since_ns or 0, until_ns]
    for name, values in selection.filters.items():
        texts = [each for each in values if is_span_key((each, ""))] if name == TRACE else [*map(json.dumps, values)]
        parameters += texts
        column = _COLUMNS[name] if _COLUMNS[name] in columns else _NO_VERSION
        conditions.append(f"{column} IN ({', '.join('?' * len(texts))})")
    ((count,),) = connection.execute(f"SELECT count(*) FROM first_spans WHERE {' AND '.join(conditions)}", parameters)
    return int(count) + count_requests(together, selection) - count_requests(stored, selection)


def check_deleted(connection: sqlite3.Connection, since_ns: int) -> None:
    """Raise `ValueError` if spans were deleted that may have begun since that time."""
    query = "SELECT until_ns FROM deleted_spans" if _columns(connection, "deleted_spans") else _FIND_DELETED
    ((deleted_ns,),) = connection.execute(query)
    if since_ns < deleted_ns:
        ended = datetime.fromtimestamp(-(-deleted_ns // 10**9), timezone.utc)
        raise ValueError(
            f"spans that ended until {ended:%Y-%m-%dT%H:%M:%S}Z are deleted: "
            "choose later times, or scale to the same time or total"
        )


def _columns(connection: sqlite3.Connection, table: str = "first_spans") -> set[str]:
    """Return the columns of a table: fewer or none in a store of an older format that no writer has upgraded."""
    return {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}


def _traces(connection: sqlite3.Connection) -> list[str]:
    return [trace for (trace,) in connection.execute("SELECT DISTINCT trace FROM spans")]


def _find_first(connection: sqlite3.Connection, traces: Iterable[str]) -> None:
    """Find the first spans of traces that spans were added to."""
    for trace in traces:
        connection.execute("DELETE FROM first_spans WHERE trace = ?", (trace,))
        connection.executemany(
            "INSERT INTO first_spans VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (trace, span.id, span.start_ns, span.end_ns, *map(json.dumps, (span.service, span.name, span.version)))
                for span in first_spans(read_spans(connection, trace))
            ],
        )


def _read(content: str) -> Span:
    """Return a span from its JSON."""
    span = Span(*json.loads(content))
    return span._replace(host_stacks=tuple(span.host_stacks))
