"""Questions about samples to the tables that the Collector's exporter writes to ClickHouse: what all of them share.

Equal samples of a thread in a step of time are counted there, and are one row. Only the heaviest traces keep their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from splunk_profiler.viewer.clickhouse_client import ClickHouseClient, Rows
from splunk_profiler.viewer.model import HOUR_NS, OTHER_TRACES, UNKNOWN_SPAN
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.profile_messages import OUTSIDE
from splunk_profiler.viewer.records import (
    RUNTIME_ID_LENGTH,
    SENDER_ATTRIBUTES,
    UNKNOWN_SERVICE,
    RecordReader,
    Sender,
    make_sender,
)

_MAX_ROWS = 1_000_000
LOGS, SPANS = "otel_logs", "otel_traces"  # names of tables, by default of the exporter
SPANS_BEFORE_NS = HOUR_NS  # a span may have begun so long before its samples
# The condition by which the span `t` has the parent `p` in its own service.
HAS_PARENT = "t.TraceId = p.TraceId AND t.ParentSpanId = p.SpanId AND t.ServiceName = p.ServiceName"
_MAX_TRACES = 100
_MAX_DEPTH = 200  # of a span below the first one of its service: each takes a join

Columns = dict[str, str]  # types by name
Parameters = dict[str, str | int]


class Period(NamedTuple):
    """Times from `since_ns` until before `until_ns`."""

    since_ns: int
    until_ns: int

    @property
    def is_empty(self) -> bool:
        """True if there are no such times."""
        return self.since_ns >= self.until_ns


class Part(NamedTuple):
    """Samples from `since_ns` until before `until_ns`: of these services, traces and so on, or of all if none is named.

    Equal ones in `step_ns` are counted together.
    """

    since_ns: int
    until_ns: int
    services: tuple[str, ...]
    traces: tuple[str, ...]
    step_ns: int
    versions: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()


@dataclass(slots=True)
class SeenProfiles:
    """Profiles that have been read.

    Attributes:
        counts: how many there were of each time; those that were left out count as well.
        hashes: of those that were read, with their senders.
    """

    counts: dict[int, int] = field(default_factory=dict)
    hashes: set[int] = field(default_factory=set)


class Question(NamedTuple):
    """A part of SQL, in which rows of the table have the name `r`, and its parameters."""

    condition: str
    parameters: Parameters


@dataclass(frozen=True)
class Found:
    """Rows that were read.

    Attributes:
        left_out: how many older records there are.
        names_due_since_ns: since when there are samples without the names of their spans; None if all have them.
    """

    rows: Rows
    left_out: int = field(default=0, kw_only=True)
    names_due_since_ns: int | None = field(default=None, kw_only=True)

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def add_to(self, reader: RecordReader) -> bool:
        """Add the samples; those that cannot be read are counted as unread.

        Returns:
            True if all samples of traces have the ids of these.
        """
        raise NotImplementedError


class SampleTable:
    """A table with samples.

    Attributes:
        name: of the table.
        content: what it has, as errors say it.
        where_traces_are: a sentence on where their samples are sought; empty if it is everywhere.
    """

    content: str
    where_traces_are = ""

    def __init__(self, client: ClickHouseClient, name: str, columns: Columns, span_columns: Columns) -> None:
        self.name = name
        self._client = client
        self._columns = columns
        self._has_spans = bool(span_columns)

    def ask(self, part: Part, period: Period, seen: SeenProfiles) -> list[Found]:
        """Return a part's samples of a period, which may be empty, and profiles that came after those of their time.

        Raises:
            SourceError: the database cannot be asked, or has too many different ones.
        """
        raise NotImplementedError

    def newest_ns(self, part: Part, period: Period) -> int:
        """Return the time of the newest record of a part in a period, whatever its trace; 0 without one."""
        condition, parameters = self._scope(part, period)
        question = f"SELECT max(toUnixTimestamp64Nano(r.Timestamp)) FROM {self.name} AS r WHERE {condition}"
        ((newest_ns,),) = self._client.rows(question, **parameters)
        return int(newest_ns or 0)  # NULL, by a setting

    def _scope(self, part: Part, period: Period) -> Question:
        """Return what selects the records of the part's services, versions and processes in a period."""
        conditions = [between("r.Timestamp")]
        parameters: Parameters = {"since": period.since_ns, "until": period.until_ns}
        if part.services:
            ordered_by, services = one_of("r.ServiceName", "service", ("", *part.services))
            named, _ = one_of(self._service(), "service", ("", *part.services))  # those without a name have one here
            conditions += [ordered_by, named]
            parameters.update(services)
        service, version, *others, runtime_id = self._sender()
        process = ", ".join([service, *others, f"substringUTF8({runtime_id}, 1, {RUNTIME_ID_LENGTH})"])
        named = f"arrayStringConcat(arrayFilter(part -> part != '', [{process}]), ' ')"
        for column, name, values in ((version, "version", part.versions), (named, "process", part.processes)):
            if values:
                condition, found = one_of(column, name, values)
                conditions.append(condition)
                parameters.update(found)
        return Question(" AND ".join(conditions), parameters)

    def _count(
        self,
        question: Question,
        part: Part,
        period: Period,
        *,
        stack: Sequence[str],
        columns: Sequence[str],
        sums: Sequence[str],
    ) -> tuple[Rows, Rows]:
        """Return samples counted by step, sender, span and stack, and the stacks by their hash.

        The columns of the first are the step, those of the sender, the names of the span and of the endpoint, if its
        ids are kept, the ids of trace and span, the hash, `columns` and `sums`; those of the second are the hash and
        those of `stack`.
        """
        question, kept = self._with_traces(question, part)
        hash_of = f"cityHash64({', '.join(stack)})"
        counted = [
            f"greatest({part.since_ns} + intDiv(toUnixTimestamp64Nano(r.Timestamp) - {part.since_ns}, {part.step_ns})"
            f" * {part.step_ns}, {{since:Int64}}) AS step",
            *self._sender(),
            f"{self._span_name('SpanName')} AS span_name",
            f"{self._span_name('Endpoint')} AS endpoint",
            f"{kept} AS is_kept",
            f"if(is_kept, r.TraceId, '{OTHER_TRACES}') AS trace",
            "if(is_kept, r.SpanId, '') AS span",
            f"{hash_of} AS hash",
            *columns,
            *sums,
        ]
        join, of_join = self._join(question, period)
        rows = self._client.rows(
            f"SELECT {', '.join(counted)} FROM {self.name} AS r {join} WHERE {question.condition}"
            f" GROUP BY ALL LIMIT {_MAX_ROWS + 1}",
            **question.parameters,
            **of_join,
        )
        if len(rows) > _MAX_ROWS:
            raise SourceError(
                f"there are more than {_MAX_ROWS:,} different samples in {self.name}:"
                " choose a shorter time, fewer hours with --last-hours, or one service with --service"
            )
        # Stacks are asked for after the counts: those of records that came in between are there as well.
        stacks = self._client.rows(
            f"SELECT {hash_of} AS hash, {', '.join(f'any({column})' for column in stack)} FROM {self.name} AS r"
            f" WHERE {question.condition} GROUP BY hash LIMIT {_MAX_ROWS}",
            **question.parameters,
        )
        return rows, stacks

    def _with_traces(self, question: Question, part: Part) -> tuple[Question, str]:
        """Return what selects the samples of the part's traces, and the column that is true if they keep their ids."""
        condition, parameters = question
        if part.traces:
            of_traces, traces = one_of("r.TraceId", "trace", part.traces)
            return Question(f"{condition} AND {of_traces}", {**parameters, **traces}), "1"
        return question, (
            "r.TraceId = '' OR r.TraceId IN"
            f" (SELECT r.TraceId FROM {self.name} AS r WHERE {condition} AND r.TraceId != ''"
            f" GROUP BY r.TraceId ORDER BY count() DESC LIMIT {_MAX_TRACES})"
        )

    def _join(self, question: Question, period: Period) -> Question:
        """Return what finds the spans of samples, which have the name `s`, if there is a table of them.

        Only spans of the traces of these samples are read: from the first ones of services down to those below.
        """
        if not self._has_spans:
            return Question("", {})
        spans = (
            f"SELECT TraceId, SpanId, ParentSpanId, ServiceName, SpanName FROM {SPANS}"
            f" WHERE {between('Timestamp', since='spans_since')}"
            f" AND TraceId IN (SELECT r.TraceId FROM {self.name} AS r WHERE {question.condition})"
            " LIMIT 1 BY TraceId, SpanId"  # those that a Collector sent twice would be doubled at each depth
        )
        return Question(
            f"ANY LEFT JOIN (WITH RECURSIVE spans AS ({spans}), found AS ("
            "SELECT t.TraceId AS TraceId, t.SpanId AS SpanId, t.ServiceName AS ServiceName, t.SpanName AS Endpoint,"
            f" 0 AS depth FROM spans AS t LEFT ANTI JOIN spans AS p ON {HAS_PARENT} UNION ALL"
            " SELECT t.TraceId, t.SpanId, t.ServiceName, p.Endpoint, p.depth + 1"
            f" FROM spans AS t INNER JOIN found AS p ON {HAS_PARENT} WHERE p.depth < {_MAX_DEPTH})"
            " SELECT t.TraceId AS TraceId, t.SpanId AS SpanId, t.SpanName AS SpanName,"
            " if(f.Endpoint != '', f.Endpoint, t.SpanName) AS Endpoint"
            " FROM spans AS t ANY LEFT JOIN found AS f ON t.TraceId = f.TraceId AND t.SpanId = f.SpanId"
            ") AS s ON r.TraceId = s.TraceId AND r.SpanId = s.SpanId",
            {"spans_since": max(0, period.since_ns - SPANS_BEFORE_NS)},
        )

    def _span_name(self, column: str) -> str:
        """Return the name of the span of a sample, or that of its endpoint, as a column."""
        # One that is not there is empty or, by a setting, NULL.
        name = f"if(s.{column} != '', s.{column}, '{UNKNOWN_SPAN}')" if self._has_spans else f"'{UNKNOWN_SPAN}'"
        return f"if(trimLeft(replaceAll(r.SpanId, '0', ' ')) = '', '{OUTSIDE}', {name})"

    def _sender(self) -> tuple[str, ...]:
        """Return what `split_sender` takes as columns."""
        return self._service(), *(self._attribute("ResourceAttributes", name) for name in SENDER_ATTRIBUTES)

    def _service(self) -> str:
        """Return the name of the service as a column."""
        return service_of("r.ServiceName")

    def _attribute(self, column: str, name: str) -> str:
        """Return an attribute of a sample as text."""
        return attribute(f"r.{column}", name, self._columns.get(column, ""))


def split_sender(row: Sequence[Any]) -> tuple[Sender, Sequence[Any]]:
    """Return the sender that the first columns of a row tell, and the others."""
    count = 1 + len(SENDER_ATTRIBUTES)
    return make_sender(*row[:count]), row[count:]


def between(column: str, since: str = "since") -> str:
    """Return the condition for times from that parameter until before the parameter `until`."""
    bounds = {">=": since, "<": "until"}
    return " AND ".join(f"{column} {sign} fromUnixTimestamp64Nano({{{name}:Int64}})" for sign, name in bounds.items())


def service_of(column: str) -> str:
    """Return the name of the service as it is shown, which is never empty."""
    return f"if({column} = '', '{UNKNOWN_SERVICE}', {column})"


def one_of(column: str, name: str, values: Sequence[str]) -> Question:
    """Return the condition that a column has one of some values, which are parameters with that name and a number."""
    parameters: Parameters = {f"{name}{index}": value for index, value in enumerate(values)}
    return Question(f"{column} IN ({', '.join(f'{{{each}:String}}' for each in parameters)})", parameters)


def attribute(column: str, name: str, kind: str) -> str:
    """Return an attribute as text: of a map, or of JSON, as the type of the column is."""
    if kind.startswith("JSON"):
        return f"toString({column}.{'.'.join(f'`{part}`' for part in name.split('.'))})"
    return f"{column}['{name}']"
