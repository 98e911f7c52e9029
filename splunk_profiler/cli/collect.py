"""``splunk-profiler collect``: a local collector that saves what it receives and shows a summary.

The main thread shows the summary and waits for the end; the server's threads receive. Signals are taken synchronously.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Group
from rich.filesize import pick_unit_and_suffix
from rich.live import Live
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.output import print_line
from splunk_profiler.cli.receiver import ReceivedCounts, Receiver, Refusals
from splunk_profiler.cli.signals import block_signals, wait_for_signal
from splunk_profiler.cli.store import Store
from splunk_profiler.cli.terminal import Terminal, text

DEFAULT_DIRECTORY = "profiles"

_UPDATE_INTERVAL_S = 0.25
_LINE_INTERVAL_S = 5.0
_MAX_SERVICES_SHOWN = 12
_MEBIBYTE = 1 << 20


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=4317, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option(
    "--output",
    default=DEFAULT_DIRECTORY,
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to save to; what it holds already is kept.",
)
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="End after this time.")
@click.option("--max-records", type=click.IntRange(1), metavar="N", help="End when N samples or profiles have come in.")
@click.option("--max-request-mib", type=click.IntRange(1, 256), default=16, show_default=True, help="Largest request.")
@click.option("--sync", is_flag=True, help="Acknowledge only what is on the disk, so that a power cut loses nothing.")
def collect(  # noqa: PLR0917
    host: str,
    port: int,
    output: Path,
    duration: float | None,
    max_records: int | None,
    max_request_mib: int,
    sync: bool,
) -> None:
    """Receive profiles, other logs and spans over OTLP/gRPC and save them.

    \b
    splunk-profiler collect --output profiles &
    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 splunk-profiler run -- python app.py
    splunk-profiler report profiles

    The directory gets logs.jsonl and traces.jsonl: OTLP/JSON, one request in a line, as the OpenTelemetry
    Collector's file exporter writes it. A request is acknowledged when it has been handed to the operating
    system whole. While the disk is full, requests are refused and their senders try again. Metrics are
    acknowledged and dropped. Only you can read the files, and the directory if it is made here. Ctrl-C ends it.
    """
    console = Terminal()
    with block_signals():
        store = Store(output, sync=sync)
        try:
            receiver = Receiver(store, host, port, max_request_mib * _MEBIBYTE, _print_problem)
            print_line(f"listening on {receiver.address}")
            updates = _iter_counts(receiver, duration, max_records)
            if console.is_terminal:
                with Live(console=console, auto_refresh=False, transient=True) as live:
                    for counts in updates:
                        live.update(_draw(counts, store), refresh=True)
            else:
                _print_lines(updates, store)
            receiver.stop()
            print_line(_summary_line(receiver.counts(), store))
            print_line(f"saved in {output}; see it: splunk-profiler report {output}")
        finally:
            store.close()


def _print_problem(problem: str) -> None:
    print_line(f"splunk-profiler: {problem}", error=True)


def _iter_counts(receiver: Receiver, duration: float | None, max_records: int | None) -> Iterator[ReceivedCounts]:
    """Yield the counts every `_UPDATE_INTERVAL_S` until a signal, the end of `duration` or so many records."""
    deadline = math.inf if duration is None else time.monotonic() + duration
    while True:
        yield receiver.counts()
        timeout_s = max(0.0, min(_UPDATE_INTERVAL_S, deadline - time.monotonic()))
        if wait_for_signal(timeout_s) or time.monotonic() >= deadline:
            return
        counts = receiver.counts()
        if max_records is not None and counts.samples + counts.profiles >= max_records:
            return


def _print_lines(updates: Iterator[ReceivedCounts], store: Store) -> None:
    shown = ReceivedCounts()
    next_line = time.monotonic() + _LINE_INTERVAL_S
    for counts in updates:
        if time.monotonic() < next_line:
            continue
        next_line += _LINE_INTERVAL_S
        if counts != shown:
            print_line(_summary_line(counts, store))
            shown = counts


def _draw(counts: ReceivedCounts, store: Store) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold cyan")
    table.add_column()
    table.add_row(f"{counts.samples:,}", f"samples, {_span_share(counts)} inside spans")
    table.add_row(f"{counts.profiles:,}", "aggregated profiles")
    table.add_row(f"{counts.spans:,}", "spans")
    table.add_row(f"{counts.logs:,}", "other log records")
    table.add_row(_format_size(store.size), f"in {store.directory}")
    services = ", ".join(counts.services[:_MAX_SERVICES_SHOWN]) or "none yet"
    if counts.unnamed_services or len(counts.services) > _MAX_SERVICES_SHOWN:
        services += " and others"
    table.add_row(str(len(counts.services)), f"services: {services}")
    lines: list[Table | Text] = [table]
    if refusals := _refusals_text(counts.refusals):
        lines.append(text(refusals, style="yellow"))
    if counts.refusals.problem:
        lines.append(text(counts.refusals.problem, style="bold red"))
    lines.append(text("Ctrl-C ends it", style="dim"))
    return Group(*lines)


def _summary_line(counts: ReceivedCounts, store: Store) -> str:
    parts = [
        f"{counts.samples:,} samples ({_span_share(counts)} inside spans)",
        f"{counts.profiles:,} aggregated profiles" if counts.profiles else "",
        f"{counts.spans:,} spans",
        f"{counts.logs:,} other log records",
        f"{_format_size(store.size)} in {store.directory}",
        _refusals_text(counts.refusals),
    ]
    return " · ".join(filter(None, parts))


def _refusals_text(counts: Refusals) -> str:
    if not (counts.malformed or counts.oversize or counts.not_saved):
        return ""
    return f"requests refused: {counts.not_saved} not saved, {counts.malformed} malformed, {counts.oversize} too large"


def _span_share(counts: ReceivedCounts) -> str:
    return f"{counts.samples_in_spans / counts.samples:.0%}" if counts.samples else "0%"


def _format_size(size: int) -> str:
    divisor, unit = pick_unit_and_suffix(size, ["B", "KiB", "MiB", "GiB"], 1024)
    return f"{size} B" if unit == "B" else f"{size / divisor:.1f} {unit}"
