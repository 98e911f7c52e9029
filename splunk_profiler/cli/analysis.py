"""The counts of the report: saved samples, joined to the names of their spans.

Runs on the main thread of `report`; draws nothing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.memory_profiles import MemoryProfiles
from splunk_profiler.cli.profiles import Profiles
from splunk_profiler.code_origin.paths import is_library
from splunk_profiler.otel.runtime_id import RUNTIME_ID
from splunk_profiler.viewer.dumps import Call, Dump, parse
from splunk_profiler.viewer.model import UNKNOWN_SPAN, SpanKey
from splunk_profiler.viewer.otlp_files import (
    ALLOCATION,
    CPU,
    DATA_FORMAT,
    DATA_TYPE,
    PROFILE_SCOPE,
    PROFILE_SUFFIXES,
    REQUEST_SUFFIXES,
    SNAPSHOT,
    SOURCE,
    STREAM_SUFFIX,
    attributes,
    find_files,
    is_database,
    is_stream,
    parse_int,
    span_key,
)
from splunk_profiler.viewer.profile_messages import OUTSIDE, PROFILE_FORMAT, place_of

STACK_TRACE_IDS = "elastic.profiler_stack_trace_ids"

_REMOTE_PARENT = 0x300  # flags of a span in OTLP: CONTEXT_HAS_IS_REMOTE and CONTEXT_IS_REMOTE


class SourceLine(NamedTuple):
    """A line of a source file; None if the line is not known."""

    file: str
    line: int | None


class ExampleRecord(NamedTuple):
    """A log record as received, and the name of its span. The best one is of a thread that ran, with a short stack."""

    span: str
    record: dict[str, Any]
    score: tuple[bool, int]


class ExampleTransaction(NamedTuple):
    """A span as received, and the count of each stack-trace id on it."""

    span: dict[str, Any]
    ids: Counter[str]


@dataclass(slots=True)
class Functions:
    """Counts of samples by the functions on their stacks.

    Attributes:
        own: samples by the function at the top of the stack.
        total: samples by function, anywhere on the stack.
        lines: samples by function, then by source line.
        callers: samples by the function at the top, then by the application's function nearest to it or itself.
    """

    samples: int = 0
    own: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    lines: dict[str, Counter[SourceLine]] = field(default_factory=lambda: defaultdict(Counter))
    callers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, calls: tuple[Call, ...]) -> None:
        """Count one sample."""
        self.samples += 1
        if not calls:
            return
        self.own[calls[0].name] += 1
        nearest = next((call.name for call in calls if not is_library(call.file)), "")
        self.callers[calls[0].name][nearest] += 1
        nearest_calls: dict[str, Call] = {}  # of each function the one nearest to the leaf: recursion counts once
        for call in calls:
            nearest_calls.setdefault(call.name, call)
        for name, call in nearest_calls.items():
            self.total[name] += 1
            self.lines[name][SourceLine(call.file, call.line)] += 1

    def place(self, name: str) -> SourceLine:
        """Return the line where that function was found most often."""
        return self.lines[name].most_common(1)[0][0]

    def caller(self, name: str) -> str:
        """Return the application's function that led most often to that function; empty if there is none."""
        return self.callers[name].most_common(1)[0][0]


@dataclass(slots=True)
class Tally:
    """Counts of a group of samples, whose threads were on a CPU or not; `thread_ns` is the sum of their periods."""

    ran: Functions = field(default_factory=Functions)
    waited: Functions = field(default_factory=Functions)
    thread_ns: int = 0

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.ran.samples + self.waited.samples

    @property
    def sort_key(self) -> tuple[int, int]:
        """Sort key: the tally with the most running samples comes first."""
        return -self.ran.samples, -self.waited.samples

    def add(self, dump: Dump, period_ns: int) -> None:
        """Count one sample."""
        self.thread_ns += period_ns
        (self.ran if dump.running else self.waited).add(dump.calls)


@dataclass(slots=True)
class ThreadTally:
    """Counts of the samples of all threads of one name."""

    samples: int = 0
    running: int = 0
    in_spans: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Transactions:
    """Counts of the local roots among the spans, and of a host profiler's stack-trace ids on them, repeated ones too.

    `example` is the local root with the most ids.
    """

    received: int = 0
    with_ids: int = 0
    ids: int = 0
    example: ExampleTransaction | None = None

    def add(self, span: dict[str, Any]) -> None:
        """Count the span if it is a local root."""
        if span.get("parentSpanId") and parse_int(span.get("flags")) & _REMOTE_PARENT != _REMOTE_PARENT:
            return
        self.received += 1
        array = attributes(span).get(STACK_TRACE_IDS)
        values = array.get("values", ()) if isinstance(array, dict) else ()
        ids = Counter(str(value.get("stringValue", "")) for value in values)
        if ids:
            self.with_ids += 1
            self.ids += ids.total()
            if self.example is None or ids.total() > self.example.ids.total():
                self.example = ExampleTransaction(span, ids)


class Analysis:
    """The numbers of a report on `files`.

    Attributes:
        samples: records that are one call stack; `in_spans` have a span id, `running` are of threads that ran.
        profiles: sums of the records that are an aggregated profile.
        memory: sums of allocations, of profiles and of records that are one call stack.
        snapshots: records of selected traces; in no other number, because the samples of all threads include them.
        other_types: other records by data type; in no other number, because they have no time.
        unread: records of the profiling scope whose body could not be parsed.
        broken_lines: lines, and entries in lines, that are not OTLP/JSON.
        other_logs: log records of other scopes.
        spans: spans received; `transactions` are the local roots among them.
        first_ns, last_ns: time of the first and the last sample, nanoseconds since the epoch.
        outside, unknown_span: samples without a span, and samples whose span was not received.
    """

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.samples = self.in_spans = self.running = 0
        self.profiles = Profiles()
        self.memory = MemoryProfiles()
        self.snapshots = self.unread = self.broken_lines = self.other_logs = 0
        self.other_types: Counter[str] = Counter()
        self.spans = 0
        self.transactions = Transactions()
        self.services: Counter[str] = Counter()
        self.first_ns = self.last_ns = 0
        self.periods_ms: Counter[int] = Counter()
        self.by_span: dict[str, Tally] = {}
        self.outside, self.unknown_span = Tally(), Tally()
        self.threads: dict[str, ThreadTally] = {}
        self._span_names: dict[SpanKey, str] = {}
        self._examples: dict[str, ExampleRecord] = {}

    @property
    def record(self) -> ExampleRecord | None:
        """An example of the span with the most running samples."""
        span = min(self.by_span, key=lambda name: self.by_span[name].sort_key, default=OUTSIDE)
        return self._examples.get(span)

    def add_spans(self, resource: dict[str, Any]) -> None:
        """Count the spans of an entry of ``resourceSpans``."""
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                self.spans += 1
                self.transactions.add(span)
                self._span_names[span_key(span)] = str(span.get("name", ""))

    def add_logs(self, resource: dict[str, Any]) -> None:
        """Count the records of an entry of ``resourceLogs``; the spans must have been counted before."""
        described = attributes(resource.get("resource", {}))
        service = str(described.get("service.name", "unknown service"))
        # In containers all processes may have the id 1, and a name of the host that others have too.
        fallback = f"{service} {described.get('host.name', '')} {described.get('process.pid', '')}"
        process = str(described.get(RUNTIME_ID) or fallback)
        for scope in resource.get("scopeLogs", ()):
            records = scope.get("logRecords", ())
            if scope.get("scope", {}).get("name") != PROFILE_SCOPE:
                self.other_logs += len(records)
                continue
            for record in records:
                self._add_record(service, process, record)

    def _add_record(self, service: str, process: str, record: dict[str, Any]) -> None:
        described = attributes(record)
        if described.get(SOURCE) == SNAPSHOT:
            self.snapshots += 1
            return
        body = str((record.get("body") or {}).get("stringValue", ""))
        try:
            is_profile = described.get(DATA_FORMAT) == PROFILE_FORMAT
            if (data_type := str(described.get(DATA_TYPE, CPU))) == ALLOCATION and not is_profile:
                allocated = max(0, parse_int(described.get("memory.allocated")))
                self.memory.add_text(map(place_of, parse(body).calls), allocated)
                return
            if data_type != CPU:
                if not (data_type == ALLOCATION and self.memory.add(body, process)):
                    self.other_types[data_type] += 1
                return
            if is_profile:
                self.profiles.add(body, service)
                return
            dump = parse(body)
        except ValueError:  # `DumpError`, `ProfileError`, or a number that Python does not convert
            self.unread += 1
            return
        time_ns = parse_int(record.get("timeUnixNano"))
        period_ms = parse_int(described.get("source.event.period"))
        self.samples += 1
        self.running += dump.running
        self.services[service] += 1
        self.periods_ms[period_ms] += 1
        self.first_ns = min(self.first_ns or time_ns, time_ns)
        self.last_ns = max(self.last_ns, time_ns)
        self._add_to_tallies(record, dump, period_ms)

    def _add_to_tallies(self, record: dict[str, Any], dump: Dump, period_ms: int) -> None:
        key = span_key(record)
        in_span = key[1].strip("0") != ""
        self.in_spans += in_span
        if not in_span:
            name, tally = OUTSIDE, self.outside
        elif key in self._span_names:
            name = self._span_names[key]
            tally = self.by_span.setdefault(name, Tally())
        else:
            name, tally = UNKNOWN_SPAN, self.unknown_span
        tally.add(dump, period_ms * 1_000_000)
        thread = self.threads.setdefault(dump.thread_name, ThreadTally())
        thread.samples += 1
        thread.running += dump.running
        thread.in_spans += in_span
        thread.statuses[dump.status] += 1
        score = (dump.running, -len(dump.calls))
        if name not in self._examples or self._examples[name].score < score:
            self._examples[name] = ExampleRecord(name, record, score)


def analyse(path: Path) -> Analysis:
    """Count what was saved at `path`: a collector's directory, or a file of OTLP/JSON lines.

    Raises:
        CommandError: nothing can be read there, or it holds no samples.
    """
    _refuse_other_kinds(path)
    result = Analysis(find_files(path))
    _add_entries(result, "resourceSpans", result.add_spans)
    _add_entries(result, "resourceLogs", result.add_logs)
    records = result.samples or result.profiles.records or result.memory.records
    if not (records or result.snapshots or result.other_types):
        advice = "to find out why: splunk-profiler doctor"
        if path.suffix == ".pprof":
            advice = "it is a profile: see splunk-profiler view"
        raise CommandError(
            f"no samples in {path} ({result.other_logs} other log records, {result.spans} spans, {result.unread} "
            f"records that cannot be read); {advice}"
        )
    return result


def _refuse_other_kinds(path: Path) -> None:
    """Raise `CommandError` for what another command reads; it names that."""
    kind, command = "", "view"
    with suppress(OSError):  # reported by what reads the files
        if path.is_dir():
            names = [file.name for file in path.iterdir()]
            if not any(name.endswith(REQUEST_SUFFIXES) for name in names):
                others = any(name.endswith((*PROFILE_SUFFIXES, STREAM_SUFFIX)) for name in names)
                kind = "holds profiles or kept streams" if others else ""
        elif is_stream(path):
            kind, command = "is a kept stream", "replay"
        elif is_database(path):
            kind = "is a store"
    if kind:
        raise CommandError(f"{path} {kind}, which report does not read: splunk-profiler {command} {path}")


def _add_entries(result: Analysis, kind: str, add: Callable[[dict[str, Any]], None]) -> None:
    """Add all entries of that kind. One that is not OTLP counts as broken; its parts before the fault stay counted."""
    for resource in _iter_resources(result, kind):
        try:
            add(resource)
        except (AttributeError, KeyError, TypeError):
            result.broken_lines += 1


def _iter_resources(result: Analysis, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of all requests with `kind`; count lines that are not JSON as broken."""
    for path in result.files:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    # The name is near the start of a line: do not parse lines of the other kind.
                    if kind not in line[:200]:
                        if kind == "resourceSpans" and line.strip() and '"resource' not in line[:200]:
                            result.broken_lines += 1
                        continue
                    try:
                        entries = json.loads(line)[kind]
                    except (KeyError, RecursionError, TypeError, ValueError):
                        entries = None
                    if isinstance(entries, list):
                        yield from entries
                    else:
                        result.broken_lines += 1
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}") from None
