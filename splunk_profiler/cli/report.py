"""``splunk-profiler report``: draws the counts of `analysis`, or prints them as JSON.

Runs on the main thread; reads no data itself.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from splunk_profiler.cli import memory_tables, profile_tables, tables
from splunk_profiler.cli.analysis import Analysis, Functions, Tally, ThreadTally, analyse
from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.profiles import Profiles
from splunk_profiler.cli.store import DEFAULT_DIRECTORY
from splunk_profiler.cli.terminal import Terminal, lines, make_console, text
from splunk_profiler.code_origin.paths import is_library
from splunk_profiler.pipeline.gil_waits import LONG_WAIT_NS
from splunk_profiler.viewer.profile_messages import OUTSIDE

_MAX_THREADS_SHOWN = 12
_MAX_IDS_SHOWN = 5


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=DEFAULT_DIRECTORY)
@click.option(
    "--top",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Functions shown of each span and endpoint.",
)
@click.option("--spans", type=click.IntRange(1), default=12, show_default=True, help="Span names and endpoints shown.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
def report(path: Path, top: int, spans: int, as_json: bool) -> None:
    """Show what the profiles saved in PATH say.

    PATH is the directory of `splunk-profiler collect`, or a file that the OpenTelemetry Collector's file
    exporter wrote. Samples are joined to the names of their spans by trace and span id.

    \b
    own    share of the span's samples that ran with that function at the top of the stack: it was executing
    total  share of the span's samples that ran with that function anywhere on the stack

    Below the functions that were executing stand the application's own functions that called them. Where threads
    waited is shown after what ran, with the application's own function that was nearest to each wait.

    Profiles that are aggregated (pprof) are added up for each endpoint. Your code comes first, with the time of
    what it did itself or had libraries do; then libraries, with the time that they were executing themselves.

    With SPLUNK_PROFILER_MEMORY_ENABLED, lines of your code follow with the memory that they or what they called
    have allocated; of profiles also how much of it is in use at the end, and how much that grew since the first one.
    """
    analysis = analyse(path)
    if as_json:
        print_json(to_dict(analysis, path), indent=2)
        return
    draw(analysis, path, console=make_console(), top=top, spans=spans)


def draw(analysis: Analysis, path: Path, *, console: Terminal, top: int = 5, spans: int = 12) -> None:
    """Print the report."""
    tables.print_section(console, "Profile", _summary(analysis, path))
    _draw_spans(console, analysis, top, spans)
    if analysis.running < analysis.samples:
        tables.print_section(console, "Where threads waited", _wait_table(analysis, top, spans))
    if analysis.threads:
        tables.print_section(console, "Threads", _thread_table(analysis.threads))
    if analysis.record:
        _draw_record(console, analysis.record.span, analysis.record.record)
    if analysis.transactions.example:
        _draw_transaction(console, *analysis.transactions.example)
    if analysis.profiles.records:
        profile_tables.draw(console, analysis.profiles, top=top, endpoints=spans)
    if analysis.memory.records:
        memory_tables.draw(console, analysis.memory, top=2 * top)
    files = [text(f"{file.resolve()}  ({file.stat().st_size / 1024:,.0f} KiB)") for file in analysis.files]
    tables.print_section(console, "Saved", *files, soft_wrap=True)


def _draw_spans(console: Terminal, analysis: Analysis, top: int, spans: int) -> None:
    ranked = sorted(analysis.by_span.items(), key=lambda item: item[1].sort_key)
    if ranked or analysis.unknown_span.samples:
        tables.print_section(console, "Spans", _span_table(analysis, ranked[:spans]))
        if len(ranked) > spans:
            console.print(text(f"  and {len(ranked) - spans} more span names (--spans)", style="dim"))
    titled = [(f"in {name}", tally) for name, tally in ranked[:spans]]
    for title, tally in [*titled, ("outside of spans", analysis.outside)]:
        if tally.ran.samples:
            tables.print_section(console, f"Hottest functions {title}", _function_table(tally.ran, top))


def to_dict(analysis: Analysis, path: Path) -> dict[str, Any]:
    """Return the report's numbers for JSON."""
    return {
        "path": str(path.resolve()),
        "files": [str(file.resolve()) for file in analysis.files],
        "samples": analysis.samples,
        "samples_in_spans": analysis.in_spans,
        "samples_running": analysis.running,
        "share_in_spans": round(analysis.in_spans / analysis.samples, 4) if analysis.samples else 0.0,
        "samples_of_spans_not_received": analysis.unknown_span.samples,
        "snapshot_records": analysis.snapshots,
        "records_by_other_type": dict(analysis.other_types),
        "unread_records": analysis.unread,
        "broken_lines": analysis.broken_lines,
        "other_logs": analysis.other_logs,
        "spans": analysis.spans,
        "transactions": analysis.transactions.received,
        "transactions_with_stack_traces": analysis.transactions.with_ids,
        "stack_trace_ids": analysis.transactions.ids,
        "services": dict(analysis.services),
        "first_time_ns": analysis.first_ns,
        "last_time_ns": analysis.last_ns,
        "samples_by_period_ms": {str(period): count for period, count in analysis.periods_ms.items()},
        "by_span": {name: _tally_to_dict(tally) for name, tally in analysis.by_span.items()},
        "outside_spans": _tally_to_dict(analysis.outside),
        "threads": {
            name: {"samples": seen.samples, "running": seen.running, "in_spans": seen.in_spans}
            for name, seen in analysis.threads.items()
        },
        "profiles": profile_tables.to_dict(analysis.profiles),
        "memory": memory_tables.to_dict(analysis.memory),
        "record": analysis.record and {"span": analysis.record.span, "as_received": analysis.record.record},
    }


def _tally_to_dict(tally: Tally) -> dict[str, Any]:
    return {
        "samples": tally.samples,
        "running": tally.ran.samples,
        "thread_seconds": tally.thread_ns / 1e9,
        "functions": _functions_to_dicts(tally.ran),
        "waiting_functions": _functions_to_dicts(tally.waited),
    }


def _functions_to_dicts(functions: Functions) -> list[dict[str, Any]]:
    return [
        {"function": name, **functions.place(name)._asdict(), "own": functions.own[name], "total": total}
        for name, total in functions.total.most_common()
    ]


def _summary(analysis: Analysis, path: Path) -> Table:
    table = tables.grid()
    if analysis.samples:
        periods = ", ".join(f"{period} ms" for period, _ in analysis.periods_ms.most_common())
        when = _time_range(analysis.first_ns, analysis.last_ns)
        table.add_row("samples received", f"{analysis.samples:,} in {when}")
        share = tables.percent(analysis.in_spans, analysis.samples)
        table.add_row("inside spans", f"{share} ({analysis.in_spans:,} samples)")
        share = tables.percent(analysis.running, analysis.samples)
        table.add_row("running", f"{share} ({analysis.running:,} samples), the others waited")
        table.add_row("sampling period", periods)
    if (profiles := analysis.profiles).records:
        _add_profile_rows(table, profiles)
    services = analysis.services + profiles.services
    if analysis.snapshots:
        table.add_row("selected traces", f"{analysis.snapshots:,} records of these alone, in no number of this report")
    for data_type, count in analysis.other_types.most_common():
        table.add_row("other data", f"{count:,} records of type {data_type}, in no number of this report")
    if services:
        names = ", ".join(f"{name} ({count:,})" for name, count in services.most_common())
        table.add_row("services", f"{names} records")
    table.add_row("spans received", f"{analysis.spans:,}")
    roots = analysis.transactions
    if roots.with_ids:
        percent = tables.percent(roots.with_ids, roots.received)
        share = f"{percent} of the transactions ({roots.with_ids:,} of {roots.received:,})"
        table.add_row("host profiler", f"{share} carry stack-trace ids from it, {roots.ids:,} in all")
    if analysis.unknown_span.samples:
        table.add_row(
            "span unknown",
            f"{analysis.unknown_span.samples:,} samples of spans that were not received: unsampled or still open",
        )
    if analysis.unread:
        table.add_row("not read", f"{analysis.unread:,} records whose body is no call stack and no profile")
    if analysis.broken_lines:
        table.add_row("not read", f"{analysis.broken_lines:,} lines that are not OTLP/JSON")
    table.add_row("read from", str(path.resolve()))
    return table


def _add_profile_rows(table: Table, profiles: Profiles) -> None:
    periods = ", ".join(f"{period} ms" for period, _ in profiles.periods_ms.most_common())
    when = _time_range(profiles.first_ns, profiles.last_ns)
    table.add_row("aggregated", f"{profiles.samples:,} more samples in {profiles.records:,} profiles of {when}")
    table.add_row("", f"every {periods}: {tables.duration(profiles.spent.cpu)} of CPU")
    if (waits := profiles.gil_waits).snapshot_count:
        mean_ms, max_ms = waits.sum_ns / waits.snapshot_count / 1e6, waits.max_ns / 1e6
        share = tables.percent(waits.long_count, waits.snapshot_count)
        fact = f"{mean_ms:.2f} ms on average, {max_ms:.1f} ms at most, over {LONG_WAIT_NS // 1_000_000} ms in {share}"
        table.add_row("wait for the GIL", fact)


def _time_range(first_ns: int, last_ns: int) -> str:
    start = datetime.fromtimestamp(first_ns / 1e9, timezone.utc)
    return f"{(last_ns - first_ns) / 1e9:.1f} s, from {start:%Y-%m-%d %H:%M:%S} UTC"


def _span_table(analysis: Analysis, ranked: list[tuple[str, Tally]]) -> Table:
    table = tables.table("span", "ran", "share", "", "waited", "thread time")
    whole = analysis.running
    for name, tally in ranked + _other_samples(analysis):
        ran, waited = tally.ran.samples, f"{tally.waited.samples:,}"
        share, bar = tables.percent(ran, whole), tables.bar(ran, whole)
        style = "" if name in analysis.by_span else "dim"
        table.add_row(name, f"{ran:,}", share, bar, waited, f"{tally.thread_ns / 1e9:.1f} s", style=style)
    return table


def _other_samples(analysis: Analysis) -> list[tuple[str, Tally]]:
    """Return the samples whose span has no known name."""
    others = ("span not received", analysis.unknown_span), ("outside of spans", analysis.outside)
    return [(title, tally) for title, tally in others if tally.samples]


def _wait_table(analysis: Analysis, top: int, spans: int) -> Table:
    """Show for each span the functions in which threads waited, and their nearest caller in the application."""
    table = tables.table("span, function", "waited", "share", "called by")
    waiting = [item for item in analysis.by_span.items() if item[1].waited.samples]
    waiting.sort(key=lambda item: -item[1].waited.samples)
    others = [item for item in _other_samples(analysis) if item[1].waited.samples]
    whole = analysis.samples - analysis.running
    for span, tally in waiting[:spans] + others:
        waited = tally.waited
        table.add_row(text(span, "bold"), f"{waited.samples:,}", tables.percent(waited.samples, whole))
        for name, count in waited.own.most_common(top):
            caller = waited.caller(name)
            called_by = "" if caller == name else caller
            table.add_row(f"  {name}", f"{count:,}", tables.percent(count, waited.samples), called_by)
    return table


def _function_table(tally: Functions, top: int) -> Table:
    """Show the functions that executed most, then the application's functions that called them."""
    table = tables.table("function", "own", "", "total", "at")
    names = [name for name, _ in tally.own.most_common(top)]
    callers = (name for name, _ in tally.total.most_common() if name not in names)
    names += [name for name in callers if not is_library(tally.place(name).file)][:top]
    for name in names:
        own, whole, place = tally.own[name], tally.samples, tally.place(name)
        function = text(name, style="bold" if own and not is_library(place.file) else "")
        own_share, total_share = tables.percent(own, whole) if own else "", tables.percent(tally.total[name], whole)
        table.add_row(function, own_share, tables.bar(own, whole), total_share, tables.place(*place))
    return table


def _thread_table(threads: dict[str, ThreadTally]) -> Table:
    table = tables.table("thread", "samples", "running", "in spans", "most often")
    ranked = sorted(threads.items(), key=lambda item: (-item[1].running, -item[1].in_spans, -item[1].samples))
    for name, seen in ranked[:_MAX_THREADS_SHOWN]:
        running, in_spans = (tables.percent(part, seen.samples) for part in (seen.running, seen.in_spans))
        status = text(seen.statuses.most_common(1)[0][0], style="dim")
        table.add_row(name, f"{seen.samples:,}", running, in_spans, status)
    if len(ranked) > _MAX_THREADS_SHOWN:
        table.add_row(text(f"and {len(ranked) - _MAX_THREADS_SHOWN} more", style="dim"))
    return table


def _draw_record(console: Terminal, span: str, record: dict[str, Any]) -> None:
    where = "outside of spans" if span == OUTSIDE else f"inside {span}"
    body = lines(record["body"]["stringValue"].rstrip("\n"), style="green")
    other_fields = lines(_format_record({**record, "body": {"stringValue": "(below, as text)"}}))
    title = f"One record as received (a sample {where})"
    tables.print_section(console, title, other_fields, body, soft_wrap=True)


def _draw_transaction(console: Terminal, span: dict[str, Any], ids: Counter[str]) -> None:
    table = tables.grid()
    for title, key in (("name", "name"), ("trace", "traceId"), ("span", "spanId")):
        table.add_row(title, str(span.get(key, "")))
    for one, count in ids.most_common(_MAX_IDS_SHOWN):
        table.add_row("stack-trace id", f"{one}  {count:,} times" if count > 1 else one)
    if len(ids) > _MAX_IDS_SHOWN:
        table.add_row("", text(f"and {len(ids) - _MAX_IDS_SHOWN} more", style="dim"))
    tables.print_section(console, "The transaction of which the host profiler has said most", table)


def _format_record(record: dict[str, Any]) -> str:
    """Format JSON with one line for each field, and one for each attribute."""
    lines = []
    for name, value in record.items():
        if isinstance(value, list):
            items = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in value)
            lines.append(f"  {json.dumps(name)}: [\n{items}\n  ]")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}"
