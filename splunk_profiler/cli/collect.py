"""``splunk-profiler collect``: a local collector that saves what it receives and shows a summary.

The main thread shows the summary and waits for the end; the server's threads receive. Signals are taken synchronously.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Group
from rich.filesize import pick_unit_and_suffix
from rich.live import Live
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.option_types import FiniteRange
from splunk_profiler.cli.output import print_line
from splunk_profiler.cli.receiver import ReceivedCounts, Receiver, Refusals
from splunk_profiler.cli.signals import block_signals, wait_for_signal
from splunk_profiler.cli.store import DEFAULT_DIRECTORY, Saved, Store
from splunk_profiler.cli.terminal import Terminal, text
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS

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
@click.option(
    "--store",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save to a store in place of a directory: one file that is kept small. Needs the extra `view`.",
)
@click.option(
    "--keep-days", type=click.IntRange(1), default=7, show_default=True, help="How long the store keeps samples."
)
@click.option(
    "--keep-whole-hours",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="After this the store keeps sums by minute, without traces.",
)
@click.option(
    "--max-store-mib", type=click.IntRange(1), default=1024, show_default=True, help="The oldest go beyond this."
)
@click.option("--duration", type=FiniteRange(min=0, min_open=True), metavar="SECONDS", help="End after this time.")
@click.option("--max-records", type=click.IntRange(1), metavar="N", help="End when N samples or profiles have come in.")
@click.option("--max-request-mib", type=click.IntRange(1, 256), default=16, show_default=True, help="Largest request.")
@click.option("--sync", is_flag=True, help="Acknowledge only what is on the disk, so that a power cut loses nothing.")
def collect(  # noqa: PLR0917
    host: str,
    port: int,
    output: Path,
    store: Path | None,
    keep_days: int,
    keep_whole_hours: int,
    max_store_mib: int,
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
    system whole, there or to the file of --store. While the disk is full, requests are refused and their
    senders try again. Metrics are acknowledged and dropped. Only you can read the files, and the directory if
    it is made here. Ctrl-C ends it.
    """
    console = Terminal()
    with block_signals():
        limits = keep_whole_hours * HOUR_NS, keep_days * DAY_NS, max_store_mib * _MEBIBYTE
        saved: Saved = Store(output, sync=sync) if store is None else _open_store(store, limits, sync=sync)
        try:
            receiver = Receiver(saved, host, port, max_request_mib * _MEBIBYTE, _print_problem)
            print_line(f"listening on {receiver.address}")
            updates = _iter_counts(receiver, duration, max_records)
            if console.is_terminal:
                with Live(console=console, auto_refresh=False, transient=True) as live:
                    for counts in updates:
                        live.update(_draw(counts, saved), refresh=True)
            else:
                _print_lines(updates, saved)
            receiver.stop()
            print_line(_summary_line(receiver.counts(), saved))
            verb = "report" if store is None else "view"
            print_line(f"saved in {saved.path}; see it: splunk-profiler {verb} {saved.path}")
        finally:
            saved.close()


def _open_store(path: Path, limits: tuple[int, int, int], *, sync: bool) -> Saved:
    from splunk_profiler.cli.store_file import StoreFile  # noqa: PLC0415  # of the extra `view`
    from splunk_profiler.viewer.store_writer import Limits  # noqa: PLC0415  # the same

    return StoreFile(path, Limits(*limits), _print_problem, sync=sync)


def _print_problem(problem: str) -> None:
    with suppress(OSError):  # standard error may be a file on the same full disk: requests are answered all the same
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


def _print_lines(updates: Iterator[ReceivedCounts], saved: Saved) -> None:
    shown = ReceivedCounts()
    next_line = time.monotonic() + _LINE_INTERVAL_S
    for counts in updates:
        if time.monotonic() < next_line:
            continue
        next_line += _LINE_INTERVAL_S
        if counts != shown:
            try:
                print_line(_summary_line(counts, saved))
            except BrokenPipeError:  # its reader has ended, and so does this command
                raise
            except OSError:  # the output may be on the same full disk
                continue
            shown = counts


def _draw(counts: ReceivedCounts, saved: Saved) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold cyan")
    table.add_column()
    table.add_row(f"{counts.samples:,}", f"samples, {_span_share(counts)} inside spans")
    table.add_row(f"{counts.profiles:,}", "aggregated profiles")
    table.add_row(f"{counts.spans:,}", "spans")
    table.add_row(f"{counts.logs:,}", "other log records")
    table.add_row(_format_size(saved.size), f"in {saved.path}")
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


def _summary_line(counts: ReceivedCounts, saved: Saved) -> str:
    parts = [
        f"{counts.samples:,} samples ({_span_share(counts)} inside spans)",
        f"{counts.profiles:,} aggregated profiles" if counts.profiles else "",
        f"{counts.spans:,} spans",
        f"{counts.logs:,} other log records",
        f"{_format_size(saved.size)} in {saved.path}",
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
