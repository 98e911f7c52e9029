"""The samples that the Collector's exporter wrote to ClickHouse, read into a `Recording`.

Only the heaviest traces keep their ids; another one is read when it is asked for.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from splunk_profiler.viewer.clickhouse_client import ClickHouseClient, parse_address
from splunk_profiler.viewer.clickhouse_logs import LogTable
from splunk_profiler.viewer.clickhouse_profiles import ProfileTable
from splunk_profiler.viewer.clickhouse_tables import (
    LOGS,
    SPANS,
    SPANS_BEFORE_NS,
    Chosen,
    Columns,
    Parameters,
    Period,
    SampleTable,
    attribute,
    between,
)
from splunk_profiler.viewer.columns import is_span_key
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, TRACE, Selection, Span
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import HOST_STACKS, RecordReader
from splunk_profiler.viewer.source import Source, check_request_filters

NEVER_NS = (1 << 63) - 1
_STEPS = 120  # of the whole time, in each of which samples are counted
_MIN_STEP_NS = 10**9
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of a table, without quotes
_LAG_NS = 30 * 10**9  # records come so much later than their time
_REFRESH_NS = 5 * 10**9
_MAX_IDS = 2000  # of spans in one question, whose parameters are in its address
_MAX_SPANS = 5000
_MAX_TRACE_RECORDINGS = 16


class ClickHouse(Source):
    """Some hours of a database, up to `until_ns` or else to its newest record; new ones are added after half a minute.

    Raises:
        SourceError: the database cannot be asked, or has no records; or there is no such table of samples.
    """

    def __init__(
        self,
        address: str,
        environment: Mapping[str, str],
        *,
        last_hours: int = 1,
        service: str = "",
        table: str = LOGS,
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
        self._end_ns = until_ns
        self._traces: OrderedDict[str, Recording] = OrderedDict()
        self._unnamed: list[tuple[RecordReader, int]] = []  # readers of samples since a time, without names of spans
        self._left_out = 0
        self._asked_ns = 0
        self._span_columns = self._read_columns(SPANS)
        last_ns = last_hours * HOUR_NS
        step_ns = max(_MIN_STEP_NS, last_ns // _STEPS)
        self._table = self._open_table(table, Chosen(service, step_ns))
        probably_ns = min(time.time_ns(), until_ns) - DAY_NS
        newest_ns = self._newest_ns(probably_ns) or self._newest_ns(0)  # the whole table has many parts
        if not newest_ns:
            of_service = f" of {service}" if service else ""
            then = time.localtime(until_ns // 10**9)
            before = time.strftime(" before %Y-%m-%d %H:%M", then) if until_ns < NEVER_NS else ""
            raise SourceError(f"{self.name} has no {self._table.content}{of_service} in {table}{before}")
        self._until_ns = (newest_ns - last_ns) // step_ns * step_ns
        self.refresh()

    def refresh(self) -> None:
        """Add the records that are new, at most each few seconds.

        Raises:
            SourceError: the database cannot be asked.
        """
        if time.time_ns() - self._asked_ns < self._refresh_ns:
            return
        period = Period(self._until_ns, min(time.time_ns() - self._lag_ns, self._end_ns))
        is_changed = bool(self._unnamed)
        if period.until_ns > period.since_ns:
            is_changed |= self._add(period)
        self.version += is_changed
        self._name_spans()
        self._asked_ns = time.time_ns()

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
        parameters: Parameters = {"since": since_ns, "until": until_ns}
        conditions = [between("Timestamp")]
        filters = {**selection.filters, **({"service": frozenset({self._service})} if self._service else {})}
        for name, column in (("service", "ServiceName"), ("endpoint", "SpanName"), (TRACE, "TraceId")):
            if name in filters:
                marks = [f"{{{name}{place}:String}}" for place in range(len(filters[name]))]
                conditions.append(f"{column} IN ({', '.join(marks)})")
                parameters.update({f"{name}{place}": value for place, value in enumerate(sorted(filters[name]))})
        ((count,),) = self._client.rows(
            f"SELECT count() FROM (SELECT TraceId, ParentSpanId, ServiceName FROM {SPANS}"
            f" WHERE {' AND '.join(conditions)}) AS t LEFT ANTI JOIN {SPANS} AS p"
            " ON t.TraceId = p.TraceId AND t.ParentSpanId = p.SpanId AND t.ServiceName = p.ServiceName",
            **parameters,
        )
        return int(count)

    def spans_of(self, trace: str) -> list[Span]:
        """Return the spans of a trace."""
        if not self._span_columns or not is_span_key((trace, "")):
            return []
        host_stacks = attribute("SpanAttributes", HOST_STACKS, self._span_columns.get("SpanAttributes", ""))
        rows = self._client.rows(
            f"SELECT SpanId, ParentSpanId, SpanName, ServiceName, toUnixTimestamp64Nano(Timestamp), Duration,"
            f" {host_stacks} FROM {SPANS} WHERE TraceId = {{trace:String}} ORDER BY Timestamp LIMIT {_MAX_SPANS}",
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
            for answer in self._table.ask(Period(0, self._until_ns), trace):
                answer.add_to(RecordReader(found))
        self._traces[trace] = found
        while len(self._traces) > _MAX_TRACE_RECORDINGS:
            self._traces.popitem(last=False)
        return found

    def _add(self, period: Period) -> bool:
        """Add the samples of a period, all or none; return True if there are any."""
        answers = self._table.ask(period)
        for found in answers:
            reader = RecordReader(self.recording)
            found.add_to(reader)
            self.unread += reader.unread
            self._left_out += found.left_out
            if found and not found.is_named:
                self._unnamed.append((reader, period.since_ns))
        self._until_ns = period.until_ns
        if self._left_out:
            self.note = f"{self._left_out} older profiles were left out: choose fewer hours, or one service."
        return any(answers)

    def _name_spans(self) -> None:
        """Put the names of spans into samples that have none; after an error they get them with the next answer."""
        while self._unnamed:
            reader, since_ns = self._unnamed[-1]
            ids = sorted({key[1] for key in reader.nameless() if is_span_key(key)})
            for first in range(0, len(ids) if self._span_columns else 0, _MAX_IDS):
                rows = self._client.rows(
                    f"SELECT TraceId, SpanId, SpanName FROM {SPANS}"
                    " WHERE Timestamp >= fromUnixTimestamp64Nano({since:Int64})"
                    " AND SpanId IN (SELECT arrayJoin(splitByChar(',', {ids:String})))",
                    since=max(0, since_ns - SPANS_BEFORE_NS),
                    ids=",".join(ids[first : first + _MAX_IDS]),
                )
                reader.name_spans({(trace, span): name for trace, span, name in rows})
            self._unnamed.pop()

    def _newest_ns(self, since_ns: int) -> int:
        return self._table.newest_ns(Period(since_ns, min(time.time_ns() + DAY_NS, self._end_ns)))

    def _open_table(self, name: str, chosen: Chosen) -> SampleTable:
        """Return a table of samples, of whichever kind it is.

        Raises:
            SourceError: there is no such table, or it is one of something else.
        """
        columns = self._read_columns(name)
        if not columns:
            raise SourceError(f"{self.name} has no table {name}: the Collector makes it with the first records")
        kinds = {"Body": LogTable, "FunctionNames": ProfileTable}
        kind = next((kind for column, kind in kinds.items() if column in columns), None)
        if kind is None or not _NAME.fullmatch(name):
            raise SourceError(f"{self.name}: the table {name} is not one of logs or of profiles")
        return kind(self._client, name, columns, self._span_columns, chosen)

    def _read_columns(self, table: str) -> Columns:
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
