"""The records that the Collector's exporter wrote to ClickHouse, read into a `Recording`.

Samples as text are counted there: equal stacks of a thread in a step of time are one row, and each text of a stack is
sent once. Profiles are decoded here. Only the heaviest traces keep their ids; another one is read when it is asked for.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from splunk_profiler.viewer.clickhouse_client import ClickHouseClient, Rows, parse_address
from splunk_profiler.viewer.columns import is_span_key
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, TRACE, UNKNOWN_SPAN, Selection, Span
from splunk_profiler.viewer.otlp_files import (
    ALLOCATION,
    CPU,
    DATA_FORMAT,
    DATA_TYPE,
    PROFILE_SCOPE,
    SNAPSHOT,
    SOURCE,
    SourceError,
    parse_int,
)
from splunk_profiler.viewer.profile_messages import OUTSIDE, PROFILE_FORMAT, decode_body
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import HOST_STACKS, RecordReader, make_sender
from splunk_profiler.viewer.source import Source, check_request_filters

NEVER_NS = (1 << 63) - 1
_STEPS = 120  # of the whole time, in each of which samples are counted
_MIN_STEP_NS = 10**9
_LAG_NS = 30 * 10**9  # records come so much later than their time
_REFRESH_NS = 5 * 10**9
_MAX_ROWS = 1_000_000
_MAX_PROFILES = 2000
_MAX_TRACES = 100
_MAX_IDS = 2000  # of spans in one question, whose parameters are in its address
_MAX_SPANS = 5000
_MAX_TRACE_RECORDINGS = 16
_SPANS_BEFORE_NS = HOUR_NS  # a span may have begun so long before its samples
# The metadata line without its numbers, of which no two are equal.
_WITHOUT_NUMBERS = r"replaceRegexpOne(l.Body, '^(\"(?:[^\"\\\\]|\\\\.)*\")[^\n]*?nid=\\S+', '\\1 #0')"


class _Period(NamedTuple):
    since_ns: int
    until_ns: int


class _Texts(NamedTuple):
    """Counted samples, and texts by their hash."""

    rows: Rows
    bodies: dict[Any, str]

    def add_to(self, reader: RecordReader) -> None:
        for step_ns, service, version, host, pid, name, _, trace, span, body, count, total_ms in self.rows:
            weights = {"samples": int(count), "wall": parse_int(int(total_ms) * 1_000_000)}
            sender, text = make_sender(service, version, host, pid), self.bodies.get(body, "")
            try:
                reader.add_text(sender, text, int(step_ns), weights, span=(trace, span), span_name=name)
            except ValueError:
                reader.unread += int(count)


class _Profiles(NamedTuple):
    """The newest profiles, and how many older ones there are."""

    rows: Rows
    left_out: int

    def add_to(self, reader: RecordReader) -> None:
        for service, version, host, pid, body in self.rows:
            try:
                reader.add_message(make_sender(service, version, host, pid), decode_body(body))
            except ValueError:
                reader.unread += 1


class ClickHouse(Source):
    """Some hours of a database, up to `until_ns` or else to its newest record; new ones are added after half a minute.

    Raises:
        SourceError: the database cannot be asked, or has no records.
    """

    def __init__(
        self,
        address: str,
        environment: Mapping[str, str],
        *,
        last_hours: int = 1,
        service: str = "",
        until_ns: int = NEVER_NS,
        lag_ns: int = _LAG_NS,
        refresh_ns: int = _REFRESH_NS,
    ) -> None:
        server = parse_address(address, environment)
        self._lag_ns, self._refresh_ns = lag_ns, refresh_ns
        self.name = server.name
        self.recording = Recording()
        self._client = ClickHouseClient(server)
        self._service = service
        self._last_ns = last_hours * HOUR_NS
        self._end_ns = until_ns
        self._step_ns = max(_MIN_STEP_NS, self._last_ns // _STEPS)
        self._traces: OrderedDict[str, Recording] = OrderedDict()
        self._left_out = 0
        self._asked_ns = 0
        self._columns = self._read_columns("otel_logs")
        if not self._columns:
            raise SourceError(f"{self.name} has no table otel_logs: the Collector makes it with the first logs")
        self._span_columns = self._read_columns("otel_traces")
        probably_ns = min(time.time_ns(), until_ns) - DAY_NS
        newest_ns = self._newest_ns(probably_ns) or self._newest_ns(0)  # the whole table has many parts
        if not newest_ns:
            of_service = f" of {service}" if service else ""
            then = time.localtime(until_ns // 10**9)
            before = time.strftime(" before %Y-%m-%d %H:%M", then) if until_ns < NEVER_NS else ""
            raise SourceError(f"{self.name} has no records of the profiler{of_service} in otel_logs{before}")
        self._until_ns = (newest_ns - self._last_ns) // self._step_ns * self._step_ns
        self.refresh()

    def refresh(self) -> None:
        """Add the records that are new, at most each few seconds.

        Raises:
            SourceError: the database cannot be asked.
        """
        if time.time_ns() - self._asked_ns < self._refresh_ns:
            return
        period = _Period(self._until_ns, min(time.time_ns() - self._lag_ns, self._end_ns))
        if period.until_ns <= period.since_ns:
            return
        texts, profiles = self._ask_texts(period), self._ask_profiles(period)  # both, or nothing is added
        reader = RecordReader(self.recording)
        texts.add_to(reader)
        profiles.add_to(reader)
        self._until_ns = period.until_ns
        self._asked_ns = time.time_ns()
        self.unread += reader.unread
        self.version += bool(texts.rows or profiles.rows)
        self._left_out += profiles.left_out
        if self._left_out:
            self.note = f"{self._left_out} older profiles were left out: choose fewer hours, or one service."
        if profiles.rows:
            self._name_spans(reader, period)

    def recording_of(self, selection: Selection) -> Recording:
        """Return the recording that has the traces of a selection."""
        for trace in selection.filters.get(TRACE, ()):
            if is_span_key((trace, "")) and trace and not self.recording.has_trace(trace):
                return self._recording_of_trace(trace)
        return self.recording

    def count_requests(self, selection: Selection) -> int:
        """Return the requests of a selection: see `Source`."""
        check_request_filters(selection)
        if not self._span_columns:
            return 0
        since_ns, until_ns = self.recording.ends_ns(selection)
        parameters: dict[str, str | int] = {"since": since_ns, "until": until_ns}
        conditions = [
            f"Timestamp {sign} fromUnixTimestamp64Nano({{{name}:Int64}})"
            for sign, name in ((">=", "since"), ("<", "until"))
        ]
        filters = {**selection.filters, **({"service": frozenset({self._service})} if self._service else {})}
        for name, column in (("service", "ServiceName"), ("endpoint", "SpanName"), (TRACE, "TraceId")):
            if name in filters:
                marks = [f"{{{name}{place}:String}}" for place in range(len(filters[name]))]
                conditions.append(f"{column} IN ({', '.join(marks)})")
                parameters.update({f"{name}{place}": value for place, value in enumerate(sorted(filters[name]))})
        ((count,),) = self._client.rows(
            f"SELECT count() FROM (SELECT TraceId, ParentSpanId, ServiceName FROM otel_traces"
            f" WHERE {' AND '.join(conditions)}) AS t LEFT ANTI JOIN otel_traces AS p"
            " ON t.TraceId = p.TraceId AND t.ParentSpanId = p.SpanId AND t.ServiceName = p.ServiceName",
            **parameters,
        )
        return int(count)

    def spans_of(self, trace: str) -> list[Span]:
        """Return the spans of a trace."""
        if not self._span_columns or not is_span_key((trace, "")):
            return []
        host_stacks = self._attribute("SpanAttributes", HOST_STACKS, self._span_columns)
        rows = self._client.rows(
            f"SELECT SpanId, ParentSpanId, SpanName, ServiceName, toUnixTimestamp64Nano(Timestamp), Duration,"
            f" {host_stacks} FROM otel_traces WHERE TraceId = {{trace:String}} ORDER BY Timestamp LIMIT {_MAX_SPANS}",
            trace=trace,
        )
        return [
            Span(span, parent, name, service, int(start_ns), int(start_ns) + int(duration_ns), _texts(stacks))
            for span, parent, name, service, start_ns, duration_ns, stacks in rows
        ]

    def _recording_of_trace(self, trace: str) -> Recording:
        found = self._traces.pop(trace, None)
        if found is None:
            found = Recording()
            self._ask_texts(_Period(0, self._until_ns), trace).add_to(RecordReader(found))
        self._traces[trace] = found
        while len(self._traces) > _MAX_TRACE_RECORDINGS:
            self._traces.popitem(last=False)
        return found

    def _ask_texts(self, period: _Period, trace: str = "") -> _Texts:
        condition, parameters = self._condition(period, is_text=True)
        if trace:
            condition += " AND l.TraceId = {trace:String}"
            parameters["trace"] = trace
            kept = "1"
        else:
            kept = (
                f"l.TraceId IN (SELECT l.TraceId FROM otel_logs AS l WHERE {condition} AND l.TraceId != ''"
                f" GROUP BY l.TraceId ORDER BY count() DESC LIMIT {_MAX_TRACES})"
            )
        hash_of = f"cityHash64({_WITHOUT_NUMBERS})"
        bodies = (
            f"SELECT {hash_of} AS hash, any({_WITHOUT_NUMBERS}) FROM otel_logs AS l WHERE {condition}"
            f" GROUP BY hash LIMIT {_MAX_ROWS}"
        )
        period_ms = f"toUInt64OrZero({self._log_attribute('source.event.period')})"
        rows = self._client.rows(
            f"SELECT intDiv(toUnixTimestamp64Nano(l.Timestamp), {self._step_ns}) * {self._step_ns} AS step,"
            f" {self._sender()}, {self._span_name()} AS span_name, {kept} AS is_kept,"
            f" if(is_kept, l.TraceId, '') AS trace, if(is_kept, l.SpanId, '') AS span,"
            f" {hash_of} AS hash, count(), sum({period_ms})"
            f" FROM otel_logs AS l {self._join(period, parameters)} WHERE {condition}"
            f" GROUP BY ALL LIMIT {_MAX_ROWS + 1}",
            **parameters,
        )
        if len(rows) > _MAX_ROWS:
            raise SourceError(
                f"{self.name} has more than {_MAX_ROWS} different samples in {self._last_ns // HOUR_NS} h:"
                " choose fewer hours with --last-hours, or one service with --service"
            )
        # Texts are asked for after the counts: those of records that came in between are there as well.
        return _Texts(rows, dict(self._client.rows(bodies, **parameters)))

    def _ask_profiles(self, period: _Period) -> _Profiles:
        condition, parameters = self._condition(period, is_text=False)
        ((count,),) = self._client.rows(f"SELECT count() FROM otel_logs AS l WHERE {condition}", **parameters)
        rows = self._client.rows(
            f"SELECT {self._sender()}, l.Body FROM otel_logs AS l WHERE {condition}"
            f" ORDER BY l.Timestamp DESC LIMIT {_MAX_PROFILES}",
            **parameters,
        )
        return _Profiles(rows, max(0, int(count) - _MAX_PROFILES))

    def _name_spans(self, reader: RecordReader, period: _Period) -> None:
        """Put the names of spans into the samples of profiles; those of text have them from the database."""
        ids = sorted({key[1] for key in reader.nameless() if is_span_key(key)})
        for first in range(0, len(ids) if self._span_columns else 0, _MAX_IDS):
            rows = self._client.rows(
                "SELECT TraceId, SpanId, SpanName FROM otel_traces"
                " WHERE Timestamp >= fromUnixTimestamp64Nano({since:Int64})"
                " AND SpanId IN (SELECT arrayJoin(splitByChar(',', {ids:String})))",
                since=max(0, period.since_ns - _SPANS_BEFORE_NS),
                ids=",".join(ids[first : first + _MAX_IDS]),
            )
            reader.name_spans({(trace, span): name for trace, span, name in rows})

    def _condition(self, period: _Period, *, is_text: bool) -> tuple[str, dict[str, str | int]]:
        """Return what records are read, and the parameters of that."""
        formats = "'', 'text'" if is_text else f"'{PROFILE_FORMAT}'"
        types = f"'', '{CPU}'" if is_text else f"'', '{CPU}', '{ALLOCATION}'"
        condition, parameters = self._scope(period)
        conditions = [
            condition,
            f"{self._log_attribute(DATA_FORMAT)} IN ({formats})",
            f"{self._log_attribute(DATA_TYPE)} IN ({types})",
            f"{self._log_attribute(SOURCE)} != '{SNAPSHOT}'",
        ]
        return " AND ".join(conditions), parameters

    def _scope(self, period: _Period) -> tuple[str, dict[str, str | int]]:
        """Return what selects the profiler's records of a period, and the parameters of that."""
        conditions = [
            f"l.ScopeName = '{PROFILE_SCOPE}'",
            "l.Timestamp >= fromUnixTimestamp64Nano({since:Int64})",
            "l.Timestamp < fromUnixTimestamp64Nano({until:Int64})",
        ]
        if "TimestampTime" in self._columns:  # the table is ordered by it, not by `Timestamp`
            conditions += [
                "l.TimestampTime >= toDateTime(fromUnixTimestamp64Nano({since:Int64}))",
                "l.TimestampTime <= toDateTime(fromUnixTimestamp64Nano({until:Int64}))",
            ]
        parameters: dict[str, str | int] = {"since": period.since_ns, "until": period.until_ns}
        if self._service:
            conditions.append("l.ServiceName = {service:String}")
            parameters["service"] = self._service
        return " AND ".join(conditions), parameters

    def _newest_ns(self, since_ns: int) -> int:
        """Return the time of the newest record since then; 0 without one."""
        condition, parameters = self._scope(_Period(since_ns, min(time.time_ns() + DAY_NS, self._end_ns)))
        question = f"SELECT max(toUnixTimestamp64Nano(l.Timestamp)) FROM otel_logs AS l WHERE {condition}"
        ((newest_ns,),) = self._client.rows(question, **parameters)
        return int(newest_ns)

    def _join(self, period: _Period, parameters: dict[str, str | int]) -> str:
        if not self._span_columns:
            return ""
        parameters["spans_since"] = max(0, period.since_ns - _SPANS_BEFORE_NS)
        return (
            "ANY LEFT JOIN (SELECT TraceId, SpanId, SpanName FROM otel_traces"
            " WHERE Timestamp >= fromUnixTimestamp64Nano({spans_since:Int64})"
            " AND Timestamp < fromUnixTimestamp64Nano({until:Int64})) AS s"
            " ON l.TraceId = s.TraceId AND l.SpanId = s.SpanId"
        )

    def _span_name(self) -> str:
        """Return the name of the span of a sample as a column."""
        name = f"if(s.SpanName = '', '{UNKNOWN_SPAN}', s.SpanName)" if self._span_columns else f"'{UNKNOWN_SPAN}'"
        return f"if(trimLeft(replaceAll(l.SpanId, '0', ' ')) = '', '{OUTSIDE}', {name})"

    def _sender(self) -> str:
        """Return service, version, host and process as columns."""
        names = ("service.version", "host.name", "process.pid")
        parts = (self._attribute("l.ResourceAttributes", name, self._columns) for name in names)
        return ", ".join(["l.ServiceName", *parts])

    def _log_attribute(self, name: str) -> str:
        return self._attribute("l.LogAttributes", name, self._columns)

    @staticmethod
    def _attribute(column: str, name: str, columns: dict[str, str]) -> str:
        """Return an attribute as text: of a map, or of JSON, as the table has them."""
        if columns.get(column.rpartition(".")[2], "").startswith("JSON"):
            return f"toString({column}.{'.'.join(f'`{part}`' for part in name.split('.'))})"
        return f"{column}['{name}']"

    def _read_columns(self, table: str) -> dict[str, str]:
        rows = self._client.rows(
            "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String}",
            table=table,
        )
        return {name: kind for name, kind in rows}  # noqa: C416  # rows are lists


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of an array, which the exporter writes as JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) and value else []
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()
