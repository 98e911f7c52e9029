"""The samples that the Collector's exporter wrote to ClickHouse, read into a `Recording`.

Equal samples in a step of time are one row, and only the heaviest traces keep their ids: a selection that needs more
than that is asked for.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from splunk_profiler.viewer.clickhouse_client import ClickHouseClient, parse_address
from splunk_profiler.viewer.clickhouse_logs import LogTable
from splunk_profiler.viewer.clickhouse_profiles import ProfileTable
from splunk_profiler.viewer.clickhouse_tables import (
    HAS_PARENT,
    LOGS,
    SPANS,
    SPANS_BEFORE_NS,
    Columns,
    Parameters,
    Part,
    Period,
    SampleTable,
    SeenProfiles,
    attribute,
    between,
    one_of,
)
from splunk_profiler.viewer.columns import is_span_key
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, NEVER_NS, TRACE, Selection, Span
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import HOST_STACKS, UNKNOWN_SERVICE, VERSION, RecordReader
from splunk_profiler.viewer.source import Source, check_request_filters

_STEPS = 120  # of the whole time, in each of which samples are counted
_MIN_STEP_NS = 10**9
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of a table, without quotes
_LAG_NS = 30 * 10**9  # records come so much later than their time
_REFRESH_NS = 5 * 10**9
_MAX_IDS = 2000  # of spans in one question, whose parameters are in its address
_MAX_SPANS = 100_000  # of a trace
_MAX_PARTS = 8  # that are kept


@dataclass(slots=True)
class _Reading:
    """The samples of a part, as far as they have been read.

    Attributes:
        until_ns: until when, of all times; the part may end before that.
        unread: records that could not be read.
        left_out: older profiles.
        has_all_ids: all samples of traces have the ids of these.
        names_due: readers whose span names have not been asked for, with the period of their samples.
        names_missing: those with spans that were not there yet: they may come later.
        asked_ns: when these were asked for last.
        seen: profiles that are not read again.
    """

    part: Part
    recording: Recording
    until_ns: int
    unread: int = 0
    left_out: int = 0
    has_all_ids: bool = True
    names_due: list[tuple[RecordReader, Period]] = field(default_factory=list)
    names_missing: list[tuple[RecordReader, Period]] = field(default_factory=list)
    asked_ns: int = 0
    seen: SeenProfiles = field(default_factory=SeenProfiles)

    @property
    def end_ns(self) -> int:
        """Until when the part has been read."""
        return min(self.until_ns, self.part.until_ns)


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
        self._client = ClickHouseClient(server)
        self._end_ns = until_ns
        self._parts: OrderedDict[Part, _Reading] = OrderedDict()  # of selections
        self._failure = ""
        self._span_columns = self._read_columns(SPANS)
        last_ns = last_hours * HOUR_NS
        step_ns = max(_MIN_STEP_NS, last_ns // _STEPS)
        self._table = self._open_table(table)
        self._services = (service,) if service else ()
        probably_ns = min(time.time_ns(), until_ns) - DAY_NS
        newest_ns = self._newest_ns(probably_ns) or self._newest_ns(0)  # the whole table has many parts
        if not newest_ns:
            of_service = f" of {service}" if service else ""
            then = time.localtime(until_ns // 10**9)
            before = time.strftime(" before %Y-%m-%d %H:%M", then) if until_ns < NEVER_NS else ""
            missing = f"{self._table.content}{of_service} in {table}{before}"
            raise SourceError(f"{self.name} has no {missing}: does the Collector write there?")
        since_ns = (min(newest_ns, time.time_ns()) - last_ns) // step_ns * step_ns  # the clock of one host may be fast
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_ns // 10**9))
        self._reach = f"Records before {since} are not shown: see --last-hours."
        self.follows = until_ns > time.time_ns()
        whole = Part(since_ns, until_ns, self._services, (), step_ns)
        self.recording = Recording(_MIN_STEP_NS)
        self._all = _Reading(whole, self.recording, since_ns)
        self._read_new()
        self._asked_ns = time.time_ns()

    def refresh(self) -> None:
        """Add the records that are new, at most each few seconds; until then, what has failed fails again.

        Raises:
            SourceError: the database cannot be asked.
        """
        if time.time_ns() - self._asked_ns >= self._refresh_ns:
            self._failure = ""
            try:
                self._read_new()
            except SourceError as error:
                self._failure = str(error)
            self._asked_ns = time.time_ns()
        if self._failure:
            raise SourceError(self._failure)

    def _read_new(self) -> None:
        is_new = self._read(self._all, time.time_ns() - self._lag_ns)  # which may change the version as well
        self.version += is_new or bool(self._all.names_due)
        self.unread = self._all.unread
        self.remark = self._reach
        if self._all.left_out:
            self.remark += f" {self._all.left_out:,} older profiles were left out: select a service or a shorter time."
        self._name_spans(self._all)

    def recording_of(self, selection: Selection) -> Recording:
        """Return the recording that has all of a selection; the database is asked for what has not been read.

        Raises:
            SourceError: that cannot be done.
        """
        services, traces, versions, processes = (
            tuple(sorted(selection.filters.get(name, ()))) for name in ("service", TRACE, "version", "process")
        )
        if not all(trace and is_span_key((trace, "")) for trace in traces):
            traces = ()
        whole, is_whole = self._all.part, selection.since_ns is None and selection.until_ns is None
        has_traces = all(map(self.recording.has_trace, traces))
        has_senders = not (self._all.left_out and (services or versions or processes))
        is_complete = (self._all.has_all_ids or not traces) and has_senders
        if is_whole and has_traces and is_complete:
            return self.recording
        first_ns = whole.since_ns if has_traces else 0
        since_ns = first_ns if selection.since_ns is None else selection.since_ns
        until_ns = whole.until_ns if selection.until_ns is None else selection.until_ns
        # Rounded up, as the steps of the timeline.
        step_ns = 0 if traces else min(whole.step_ns, -(-(until_ns - since_ns) // _STEPS))
        part = Part(since_ns, until_ns, whole.services or services, traces, max(_MIN_STEP_NS, step_ns))
        reading = self._all if part == whole else self._read_part(part)
        if reading.left_out and (versions or processes):  # else those are among what has been read
            reading = self._read_part(part._replace(versions=versions, processes=processes))
        return reading.recording

    def _read_part(self, part: Part) -> _Reading:
        """Return a part, as far as the whole has been read."""
        reading = self._parts.pop(part, None) or _Reading(part, self.recording.sibling(), part.since_ns)
        self._read(reading, self._all.until_ns)
        self._parts[part] = reading
        while len(self._parts) > _MAX_PARTS:
            self._parts.popitem(last=False)
        self._name_spans(reading)
        reading.recording.note = self._note_on(reading)
        return reading

    def _note_on(self, reading: _Reading) -> str:
        """Return what is missing of the samples of a part."""
        notes = []
        if reading.left_out:
            notes.append(f"{reading.left_out:,} older profiles of this time were left out.")
        if reading.part.traces and not any(map(reading.recording.has_trace, reading.part.traces)):
            notes.append(f"No sample of this trace was found. {self._table.where_traces_are}".rstrip())
        return " ".join(notes)

    def count_requests(self, selection: Selection) -> int:
        """Count the spans of a selection's time without a parent in their service that began up to an hour before.

        Raises:
            SourceError: the database cannot be asked.
            ValueError: the selection has filters that spans have no values for.
        """
        check_request_filters(selection)
        if not self._span_columns:
            return 0
        since_ns = self._all.part.since_ns if selection.since_ns is None else selection.since_ns
        until_ns = self._all.end_ns if selection.until_ns is None else selection.until_ns
        parameters: Parameters = {
            "since": since_ns,
            "until": until_ns,
            "parents_since": max(0, since_ns - SPANS_BEFORE_NS),
        }
        conditions, of_parents = [between("Timestamp")], [between("Timestamp", since="parents_since")]
        filters = dict(selection.filters)
        if self._all.part.services:
            filters["service"] = frozenset(self._all.part.services)
        if UNKNOWN_SERVICE in filters.get("service", ()):
            filters["service"] |= {""}  # as the table has it
        version = attribute("ResourceAttributes", VERSION, self._span_columns.get("ResourceAttributes", ""))
        columns = {"service": "ServiceName", TRACE: "TraceId", "endpoint": "SpanName", "version": version}
        for name in columns.keys() & filters.keys():
            condition, values = one_of(columns[name], name, sorted(filters[name]))
            conditions.append(condition)
            of_parents += [condition] if name in {"service", TRACE} else []
            parameters.update(values)
        ((count,),) = self._client.rows(
            f"SELECT count() FROM (SELECT TraceId, ParentSpanId, ServiceName FROM {SPANS}"
            f" WHERE {' AND '.join(conditions)} LIMIT 1 BY TraceId, SpanId, ServiceName) AS t LEFT ANTI JOIN"
            f" (SELECT TraceId, SpanId, ServiceName FROM {SPANS} WHERE {' AND '.join(of_parents)}) AS p"
            f" ON {HAS_PARENT}",
            **parameters,
        )
        return int(count)

    def spans_of(self, trace: str) -> list[Span]:
        """Return the spans of a trace.

        Raises:
            SourceError: the database cannot be asked, or has too many.
        """
        if not self._span_columns or not is_span_key((trace, "")):
            return []
        host_stacks = attribute("SpanAttributes", HOST_STACKS, self._span_columns.get("SpanAttributes", ""))
        rows = self._client.rows(
            f"SELECT SpanId, ParentSpanId, SpanName, ServiceName, toUnixTimestamp64Nano(Timestamp), Duration,"
            f" {host_stacks} FROM {SPANS} WHERE TraceId = {{trace:String}} ORDER BY Timestamp LIMIT {_MAX_SPANS + 1}",
            trace=trace,
        )
        if len(rows) > _MAX_SPANS:
            raise SourceError(f"this trace has more than {_MAX_SPANS:,} spans in {self.name}: they cannot be shown")
        return [
            Span(span, parent, name, service, int(start_ns), int(start_ns) + int(duration_ns), _texts(stacks))
            for span, parent, name, service, start_ns, duration_ns, stacks in rows
        ]

    def _read(self, reading: _Reading, until_ns: int) -> bool:
        """Read what a part has until then, all or nothing; return True if there is any."""
        self._name_late_spans(reading)
        period = Period(reading.until_ns, min(until_ns, reading.part.until_ns))
        if until_ns <= reading.until_ns:
            return False
        answers = self._table.ask(reading.part, period, reading.seen)
        for found in answers:
            reader = RecordReader(reading.recording)
            reading.has_all_ids &= found.add_to(reader)
            reading.unread += reader.unread
            reading.left_out += found.left_out
            if found and found.names_due_since_ns is not None:
                reading.names_due.append((reader, period._replace(since_ns=found.names_due_since_ns)))
            elif found:
                self._wait_for_spans(reading, reader, period)
        reading.until_ns = until_ns
        return any(answers)

    def _name_spans(self, reading: _Reading) -> None:
        """Put the names of spans into samples that have none; after an error they get them with the next answer."""
        while reading.names_due:
            reader, period = reading.names_due[-1]
            ids = sorted({key[1] for key in reader.unnamed_spans() if is_span_key(key)})
            for first in range(0, len(ids) if self._span_columns else 0, _MAX_IDS):
                rows = self._client.rows(
                    f"SELECT TraceId, SpanId, SpanName FROM {SPANS}"
                    " WHERE Timestamp >= fromUnixTimestamp64Nano({since:Int64})"
                    " AND SpanId IN (SELECT arrayJoin(splitByChar(',', {ids:String})))",
                    since=max(0, period.since_ns - SPANS_BEFORE_NS),
                    ids=",".join(ids[first : first + _MAX_IDS]),
                )
                reader.name_spans({(trace, span): name for trace, span, name in rows})
            reading.names_due.pop()
            self._wait_for_spans(reading, reader, period)

    def _wait_for_spans(self, reading: _Reading, reader: RecordReader, period: Period) -> None:
        """Keep a reader's samples without a span name until their spans come."""
        if self._span_columns and reader.unnamed_spans():
            reader.release()
            reading.names_missing.append((reader, period))

    def _name_late_spans(self, reading: _Reading) -> None:
        """Put names into samples whose spans were open at the end of what has been read: these come when they end.

        They are asked for at most each few seconds.
        """
        now_ns = time.time_ns()
        if now_ns - reading.asked_ns < self._refresh_ns:
            return
        reading.asked_ns = now_ns
        youngest_ns = now_ns - SPANS_BEFORE_NS
        reading.names_missing = [
            each for each in reading.names_missing if each[0].unnamed_spans() and each[1].until_ns > youngest_ns
        ]
        if not reading.names_missing:
            return
        rows = self._client.rows(
            f"SELECT TraceId, SpanId, ParentSpanId, SpanName, ServiceName FROM {SPANS} WHERE {between('Timestamp')}"
            " AND toUnixTimestamp64Nano(Timestamp) + toInt64(Duration) >= {until:Int64}",
            since=max(0, reading.end_ns - SPANS_BEFORE_NS),
            until=reading.end_ns,
        )
        spans = {
            (trace, span): Span(span, parent, name, service, 0, 0, ()) for trace, span, parent, name, service in rows
        }
        for reader, _ in reading.names_missing:
            while found := {key: spans[key] for key in reader.unnamed_spans() & spans.keys()}:
                reader.add_spans(found)
                self.version += 1

    def _newest_ns(self, since_ns: int) -> int:
        whole = Part(since_ns, self._end_ns, self._services, (), 0)
        return self._table.newest_ns(whole, Period(since_ns, min(time.time_ns() + DAY_NS, self._end_ns)))

    def _open_table(self, name: str) -> SampleTable:
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
        return kind(self._client, name, columns, self._span_columns)

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
