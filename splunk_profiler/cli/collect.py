"""``splunk-profiler collect``: a local collector that saves what it receives and shows a summary.

The main thread shows the summary and waits for the end; the server's threads receive. Signals are taken synchronously.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.output import print_line
from splunk_profiler.cli.receiver import Counts, Receiver
from splunk_profiler.cli.signals import block_signals, wait_for_signal
from splunk_profiler.cli.store import Store
from splunk_profiler.cli.terminal import Terminal, text

DEFAULT_DIRECTORY = "profiles"

_LIVE_INTERVAL_S = 0.25
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
            receiver = Receiver(
                store,
                host,
                port,
                max_request_mib * _MEBIBYTE,
                lambda problem: print_line(f"splunk-profiler: {problem}", error=True),
            )
            print_line(f"listening on {receiver.address}")
            end = _StopCondition(receiver, duration, max_records)
            if console.is_terminal:
                _show_live(console, receiver, store, end)
            else:
                _show_lines(receiver, store, end)
            receiver.stop()
            print_line(_summary_line(receiver.counts(), store))
            print_line(f"saved in {output}; see it: splunk-profiler report {output}")
        finally:
            store.close()


class _StopCondition:
    """The condition that ends the collector: a signal, the duration or the number of records."""

    def __init__(self, receiver: Receiver, duration: float | None, max_records: int | None) -> None:
        self._receiver = receiver
        self._deadline = math.inf if duration is None else time.monotonic() + duration
        self._max_records = math.inf if max_records is None else max_records

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds; True if the collector is to end."""
        timeout_s = max(0.0, min(timeout_s, self._deadline - time.monotonic()))
        if wait_for_signal(timeout_s) or time.monotonic() >= self._deadline:
            return True
        counts = self._receiver.counts()
        return counts.samples + counts.profiles >= self._max_records


def _show_live(console: Terminal, receiver: Receiver, store: Store, end: _StopCondition) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(_table(receiver, store), refresh=True)
            if end.wait(_LIVE_INTERVAL_S):
                return


def _show_lines(receiver: Receiver, store: Store, end: _StopCondition) -> None:
    shown = Counts()
    next_line = time.monotonic() + _LINE_INTERVAL_S
    while not end.wait(_LIVE_INTERVAL_S):
        if time.monotonic() < next_line:
            continue
        next_line += _LINE_INTERVAL_S
        counts = receiver.counts()
        if counts != shown:
            print_line(_summary_line(counts, store))
            shown = counts


def _table(receiver: Receiver, store: Store) -> Group:
    counts = receiver.counts()
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold cyan")
    table.add_column()
    table.add_row(f"{counts.samples:,}", f"samples, {_span_share(counts)} inside spans")
    table.add_row(f"{counts.profiles:,}", "aggregated profiles")
    table.add_row(f"{counts.spans:,}", "spans")
    table.add_row(f"{counts.logs:,}", "other log records")
    table.add_row(_format_size(store.size), f"in {store.directory}")
    table.add_row(str(len(counts.services)), f"services: {_service_names(counts)}")
    lines: list[Table | Text] = [table]
    if refusals := _refusals_text(counts):
        lines.append(text(refusals, style="yellow"))
    if counts.problem:
        lines.append(text(counts.problem, style="bold red"))
    lines.append(text("Ctrl-C ends it", style="dim"))
    return Group(*lines)


def _service_names(counts: Counts) -> str:
    shown = counts.services[:_MAX_SERVICES_SHOWN]
    others = " and others" if counts.unnamed_services or len(shown) < len(counts.services) else ""
    return f"{', '.join(shown)}{others}" or "none yet"


def _summary_line(counts: Counts, store: Store) -> str:
    parts = [
        f"{counts.samples:,} samples ({_span_share(counts)} inside spans)",
        f"{counts.profiles:,} aggregated profiles" if counts.profiles else "",
        f"{counts.spans:,} spans",
        f"{counts.logs:,} other log records",
        f"{_format_size(store.size)} in {store.directory}",
        _refusals_text(counts),
    ]
    return " · ".join(filter(None, parts))


def _refusals_text(counts: Counts) -> str:
    if not (counts.malformed or counts.oversize or counts.refused):
        return ""
    return f"requests refused: {counts.refused} not saved, {counts.malformed} malformed, {counts.oversize} too large"


def _span_share(counts: Counts) -> str:
    return f"{counts.samples_in_spans / counts.samples:.0%}" if counts.samples else "0%"


def _format_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
