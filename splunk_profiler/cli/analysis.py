"""What saved profiles say: samples joined to the names of their spans, and counted.

Runs on the main thread of `report`. Data in, numbers out: draws nothing. Imports nothing of ours but the
readers of stacks and of profiles, what a path tells, and errors.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splunk_profiler.cli.dumps import Call, Dump, DumpError, parse
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.library_paths import is_library
from splunk_profiler.cli.profiles import FORMAT as PROFILE_FORMAT
from splunk_profiler.cli.profiles import OUTSIDE, ProfileError, Profiles

PROFILE_SCOPE = "otel.profiling"
STACK_TRACE_IDS = "elastic.profiler_stack_trace_ids"
UNKNOWN_SPAN = "(span not received)"

_SOURCE, _SNAPSHOT = "profiling.instrumentation.source", "snapshot"
_DATA_TYPE, _CPU = "profiling.data.type", "cpu"
_REMOTE_PARENT = 0x300  # OTLP's flags of a span: it is known whether its parent is of another process, and it is

_INT64_LIMIT = 1 << 63

SpanKey = tuple[str, str]


@dataclass(slots=True)
class Functions:
    """Samples by the functions on their stacks.

    Attributes:
        samples: all of them.
        own: by function, samples with it at the top; `lines` says on which line.
        total: by function, samples with it anywhere on the stack.
        callers: by function at the top, the application's function that is nearest to it, itself included.
    """

    samples: int = 0
    own: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    lines: dict[str, Counter[tuple[str, int | None]]] = field(default_factory=lambda: defaultdict(Counter))
    callers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, calls: tuple[Call, ...]) -> None:
        """Count one sample."""
        self.samples += 1
        if not calls:
            return
        self.own[calls[0].name] += 1
        self.callers[calls[0].name][_nearest_application_function(calls)] += 1
        for name, call in _first_calls(calls).items():
            self.total[name] += 1
            self.lines[name][call.file, call.line] += 1

    def place(self, name: str) -> tuple[str, int | None]:
        """File and line where that function was found most often."""
        return self.lines[name].most_common(1)[0][0]

    def caller(self, name: str) -> str:
        """The application's function that led to that function most often; empty if there is none."""
        return self.callers[name].most_common(1)[0][0]


@dataclass(slots=True)
class Tally:
    """Samples that belong together, those of threads that ran apart from those of threads that waited.

    Attributes:
        ran: samples whose thread was on a CPU.
        waited: the others.
        thread_ns: the time that all of them stand for: each one its period.
    """

    ran: Functions = field(default_factory=Functions)
    waited: Functions = field(default_factory=Functions)
    thread_ns: int = 0

    @property
    def samples(self) -> int:
        """All of them."""
        return self.ran.samples + self.waited.samples

    @property
    def sort_key(self) -> tuple[int, int]:
        """The key to sort tallies by: what ran most comes first."""
        return -self.ran.samples, -self.waited.samples

    def add(self, dump: Dump, period_ns: int) -> None:
        """Count one sample."""
        self.thread_ns += period_ns
        (self.ran if dump.running else self.waited).add(dump.calls)


@dataclass(slots=True)
class ThreadTally:
    """Samples of all threads of one name."""

    samples: int = 0
    running: int = 0
    in_spans: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Transactions:
    """The local roots among the spans, and what a host profiler has said of them.

    Attributes:
        received: all of them; `with_ids` carry stack-trace ids.
        ids: how many they carry in all; an id that was seen twice counts twice.
        example: the one with the most ids: its span as received, and how often it has each id.
    """

    received: int = 0
    with_ids: int = 0
    ids: int = 0
    example: tuple[dict[str, Any], Counter[str]] | None = None

    def add(self, span: dict[str, Any]) -> None:
        """Count one span, if it is a transaction."""
        if span.get("parentSpanId") and _parse_int(span.get("flags")) & _REMOTE_PARENT != _REMOTE_PARENT:
            return
        self.received += 1
        ids = Counter(_string_array(span, STACK_TRACE_IDS))
        if ids:
            self.with_ids += 1
            self.ids += ids.total()
            if self.example is None or ids.total() > self.example[1].total():
                self.example = (span, ids)


@dataclass(slots=True)
class Analysis:
    """The numbers of a report.

    Attributes:
        files: what was read.
        samples: records that are one call stack each; `in_spans` of them carry a span id, of `running` the thread ran.
        profiles: records that are an aggregated profile each, added up.
        snapshots: records of traces that were profiled closely, of either kind; they are in no other number, because
            what they tell is in the samples of all threads, too.
        other_types: records of another data type, by that (``allocation``); they are in no other number, because they
            have neither CPU nor wall time.
        unread: records of the profiling scope whose body is neither.
        broken_lines: lines and entries of lines that are no OTLP/JSON.
        other_logs: log records of other scopes.
        spans: spans received; `transactions` are those of them that are local roots.
        services: samples by service.
        first_ns, last_ns: time of the first and the last sample, nanoseconds since the epoch.
        periods_ms: samples by their period.
        by_span: samples by span name; `OUTSIDE` and `UNKNOWN_SPAN` are not among them.
        outside: samples without a span; `unknown_span`: those whose span was not received.
        threads: samples by thread name.
        record: the record shown as an example, as received, and the name of its span.
    """

    files: list[Path] = field(default_factory=list)
    samples: int = 0
    in_spans: int = 0
    running: int = 0
    profiles: Profiles = field(default_factory=Profiles)
    snapshots: int = 0
    other_types: Counter[str] = field(default_factory=Counter)
    unread: int = 0
    broken_lines: int = 0
    other_logs: int = 0
    spans: int = 0
    transactions: Transactions = field(default_factory=Transactions)
    services: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0
    periods_ms: Counter[int] = field(default_factory=Counter)
    by_span: dict[str, Tally] = field(default_factory=dict)
    outside: Tally = field(default_factory=Tally)
    unknown_span: Tally = field(default_factory=Tally)
    threads: dict[str, ThreadTally] = field(default_factory=dict)
    record: tuple[str, dict[str, Any]] | None = None


def analyse(path: Path) -> Analysis:
    """The numbers of what was saved at `path`: a collector's directory, or a file of OTLP/JSON lines.

    Raises:
        CommandError: nothing can be read there, or it holds no samples.
    """
    result = Analysis(files=_find_files(path))
    names: dict[SpanKey, str] = {}
    for resource in _iter_resources(result, "resourceSpans"):
        with _count_broken_entries(result):
            _count_spans(result, names, resource)
    examples: dict[str, tuple[tuple[bool, int], dict[str, Any]]] = {}
    for resource in _iter_resources(result, "resourceLogs"):
        with _count_broken_entries(result):
            _count_logs(result, names, resource, examples)
    if not (result.samples or result.profiles.records or result.snapshots or result.other_types):
        raise CommandError(
            f"no samples in {path} ({result.other_logs} other log records, {result.spans} spans, {result.unread} "
            f"records that cannot be read); to find out why: splunk-profiler doctor"
        )
    hottest_span = min(result.by_span, key=lambda name: result.by_span[name].sort_key, default=OUTSIDE)
    if hottest_span in examples:
        result.record = (hottest_span, examples[hottest_span][1])
    return result


@contextmanager
def _count_broken_entries(result: Analysis) -> Iterator[None]:
    """Count an entry that is JSON and has not the shape of OTLP; what came before the fault is counted."""
    try:
        yield
    except (AttributeError, KeyError, TypeError):
        result.broken_lines += 1


def _count_spans(result: Analysis, names: dict[SpanKey, str], resource: dict[str, Any]) -> None:
    for scope in resource.get("scopeSpans", ()):
        for span in scope.get("spans", ()):
            result.spans += 1
            result.transactions.add(span)
            names[_span_key(span)] = str(span.get("name", ""))


def _count_logs(
    result: Analysis,
    names: dict[SpanKey, str],
    resource: dict[str, Any],
    examples: dict[str, tuple[tuple[bool, int], dict[str, Any]]],
) -> None:
    service = str(_attributes(resource.get("resource", {})).get("service.name", "unknown service"))
    for scope in resource.get("scopeLogs", ()):
        records = scope.get("logRecords", ())
        if scope.get("scope", {}).get("name") != PROFILE_SCOPE:
            result.other_logs += len(records)
            continue
        for record in records:
            _count_record(result, names, service, record, examples)


def _count_record(
    result: Analysis,
    names: dict[SpanKey, str],
    service: str,
    record: dict[str, Any],
    examples: dict[str, tuple[tuple[bool, int], dict[str, Any]]],
) -> None:
    attributes = _attributes(record)
    if attributes.get(_SOURCE) == _SNAPSHOT:
        result.snapshots += 1
        return
    if (data_type := str(attributes.get(_DATA_TYPE, _CPU))) != _CPU:
        result.other_types[data_type] += 1
        return
    body = str((record.get("body") or {}).get("stringValue", ""))
    try:
        if attributes.get("profiling.data.format") == PROFILE_FORMAT:
            result.profiles.add(body, service)
            return
        dump = parse(body)
    except (DumpError, ProfileError):
        result.unread += 1
        return
    time_ns = _parse_int(record.get("timeUnixNano"))
    period_ms = _parse_int(attributes.get("source.event.period"))
    result.samples += 1
    result.running += dump.running
    result.services[service] += 1
    result.periods_ms[period_ms] += 1
    result.first_ns = min(result.first_ns or time_ns, time_ns)
    result.last_ns = max(result.last_ns, time_ns)
    key = _span_key(record)
    in_span = key[1].strip("0") != ""
    result.in_spans += in_span
    if not in_span:
        name, tally = OUTSIDE, result.outside
    elif key in names:
        name = names[key]
        tally = result.by_span.setdefault(name, Tally())
    else:
        name, tally = UNKNOWN_SPAN, result.unknown_span
    tally.add(dump, period_ms * 1_000_000)
    thread = result.threads.setdefault(dump.thread_name, ThreadTally())
    thread.samples += 1
    thread.running += dump.running
    thread.in_spans += in_span
    thread.statuses[dump.status] += 1
    # The best example of a span is of a thread at work, and short enough to be read.
    score = (dump.running, -len(dump.calls))
    if name not in examples or examples[name][0] < score:
        examples[name] = (score, record)


def _parse_int(value: Any) -> int:
    """A number as OTLP/JSON writes it (64 bits are text); 0 for what is none, or needs more."""
    try:
        number = int(value)
    except (OverflowError, TypeError, ValueError):
        return 0
    return number if abs(number) < _INT64_LIMIT else 0


def _span_key(holder: dict[str, Any]) -> SpanKey:
    return str(holder.get("traceId", "")).lower(), str(holder.get("spanId", "")).lower()


def _nearest_application_function(calls: Iterable[Call]) -> str:
    """The name of the application's function that is nearest to the leaf; empty if there is none."""
    return next((call.name for call in calls if not is_library(call.file)), "")


def _first_calls(calls: Iterable[Call]) -> dict[str, Call]:
    """Each function once, where it stands nearest to the leaf: recursion counts once."""
    first: dict[str, Call] = {}
    for call in calls:
        first.setdefault(call.name, call)
    return first


def _find_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".jsonl", ".json"))
        if not files:
            raise CommandError(f"{path} holds no .jsonl files; fill it: splunk-profiler collect --output {path}")
        return files
    if not path.exists():
        raise CommandError(f"{path} does not exist")
    return [path]


def _iter_resources(result: Analysis, kind: str) -> Iterator[dict[str, Any]]:
    """The entries of all requests that carry `kind`; counts lines that are no JSON."""
    for path in result.files:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    # The name stands at the start of a line; most lines are of the other kind.
                    if kind not in line[:200]:
                        if kind == "resourceSpans" and line.strip() and '"resource' not in line[:200]:
                            result.broken_lines += 1
                        continue
                    try:
                        request = json.loads(line)
                        entries = request[kind]
                    except (KeyError, RecursionError, TypeError, ValueError):
                        result.broken_lines += 1
                        continue
                    if isinstance(entries, list):
                        yield from entries
                    else:
                        result.broken_lines += 1
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """Attributes by key; a value as its OTLP/JSON text or number."""
    return {
        item["key"]: next(iter(item["value"].values()), None)
        for item in holder.get("attributes", ())
        if "key" in item and item.get("value")
    }


def _string_array(holder: dict[str, Any], key: str) -> Iterator[str]:
    """The texts in an attribute that is an array of them."""
    for item in holder.get("attributes", ()):
        if item.get("key") == key:
            array = (item.get("value") or {}).get("arrayValue") or {}
            yield from (str(value.get("stringValue", "")) for value in array.get("values", ()))
