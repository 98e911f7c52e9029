"""``splunk-profiler inspect``: shows what a host profiler would see of a process, as tables or as JSON.

Runs on the main thread, which stops and reads the threads of the process. Signals are taken synchronously between
reads, so none arrives while a thread is stopped. Imports the inspector late.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.option_types import FiniteRange, ProcessId
from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.signals import block_signals, wait_until_deadline
from splunk_profiler.cli.terminal import make_console, text

if TYPE_CHECKING:
    from splunk_profiler.inspector import Reader, Report
    from splunk_profiler.inspector.model import CorrelationRecord, Reason, ThreadReading

_MAX_TIDS_SHOWN = 8
_STYLES = {"blocks": "bold red", "loses": "yellow", "note": "dim"}
_MARKS = {"blocks": "✗", "loses": "!", "note": "·"}


@click.command()
@click.argument("pid", type=ProcessId())
@click.option("--watch", is_flag=True, help="Read again and again, until Ctrl-C or the end of the process.")
@click.option("--interval", type=FiniteRange(0.01, 3600), default=1.0, show_default=True, help="Seconds between reads.")
@click.option("--strict-host", is_flag=True, help="Show what real host profilers see, with their limits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line for each read.")
def inspect(pid: int, watch: bool, interval: float, strict_host: bool, as_json: bool) -> int:
    """Show what a host profiler would see of process PID.

    Reads the memory of another process as Elastic's and Parca's eBPF profilers do: the trace context and the labels
    of every thread, the process storage, and whether its socket would be accepted. Says why, if they would see nothing.
    Each thread is stopped for about a millisecond at most and is never left stopped.

    \b
    splunk-profiler inspect $(pgrep -of gunicorn)
    splunk-profiler inspect PID --strict-host --json

    Exit code 0 if a host profiler would follow at least one of the two interfaces, 1 if not or if the process cannot
    be read.
    """
    if sys.platform != "linux":
        raise CommandError("processes can be inspected on Linux only, as host profilers do")
    from splunk_profiler.inspector import InspectorError, Reader  # noqa: PLC0415

    try:
        with block_signals(), Reader(pid, strict_host=strict_host) as reader:
            return _show(_iter_reports(reader, interval if watch else None), watch=watch, as_json=as_json)
    except InspectorError as error:
        raise CommandError(str(error)) from None


def _iter_reports(reader: Reader, interval_s: float | None) -> Iterator[Report]:
    """Read once, or again and again until a signal."""
    deadline = time.monotonic()
    while True:
        yield reader.read()
        if interval_s is None:
            return
        # An absolute deadline; no burst after a read that took longer than the interval.
        deadline = max(deadline + interval_s, time.monotonic())
        if wait_until_deadline(deadline, reader.detach_pending):
            return


def _show(reports: Iterator[Report], *, watch: bool, as_json: bool) -> int:
    console = make_console()
    is_live = watch and console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if is_live else nullcontext() as live:
        for report in reports:
            if as_json:
                print_json(_to_dict(report), indent=None if watch else 2)
            elif live is None:
                console.print(_draw(report))
            else:
                live.update(_draw(report), refresh=True)
    return int(not report.followed_interfaces)


def _to_dict(report: Report) -> dict[str, Any]:
    r"""Return the report for JSON; bytes that are not UTF-8 become ``\xNN``."""
    storage = report.storage
    return {
        "pid": report.pid,
        "command": report.command,
        "time_unix_nano": report.time_ns,
        "mode": _mode_name(report),
        "followed": report.followed_interfaces,
        "libraries": [
            {
                "interface": library.interface.value,
                "path": library.path,
                "tls": library.variable.tls.value,
                "offset": library.variable.offset,
            }
            for library in report.libraries
        ],
        "storage": storage and {**asdict(storage), "socket_accepted": report.socket_accepted},
        "threads": [_thread_to_dict(thread) for thread in report.threads],
        "reasons": [
            {**asdict(reason), "level": reason.level.value, "interface": reason.interface.value}
            for reason in report.reasons
        ],
    }


def _thread_to_dict(thread: ThreadReading) -> dict[str, Any]:
    return {
        "tid": thread.tid,
        "name": thread.name,
        "stopped": thread.was_stopped,
        "correlation": thread.correlation and asdict(thread.correlation),
        "labels": thread.labels
        and [{"key": _decode_text(label.key), "value": _decode_text(label.value)} for label in thread.labels],
    }


def _draw(report: Report) -> Group:
    """Return the report as tables of at most 100 columns."""
    parts: list[RenderableType] = [
        text(f"Process {report.pid} ({report.command}), {_mode_name(report)} mode", style="bold"),
        "",
        *_process_tables(report),
        "",
        _thread_table(report.threads),
    ]
    labelled = [thread for thread in report.threads if thread.labels]
    if labelled:
        parts += ["", _label_table(labelled)]
    if report.reasons:
        parts += ["", _reason_table(report.reasons)]
    if report.followed_interfaces:
        names = ", ".join(report.followed_interfaces)
        verdict = text(f"A host profiler would follow: {names}.", style="bold green")
    else:
        verdict = text("A host profiler would see nothing of this process.", style="bold red")
    return Group(*parts, "", verdict)


def _process_tables(report: Report) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for library in report.libraries:
        table.add_row(library.interface.value, text(f"{library.variable.tls.value} TLS  {library.path}"))
    if report.storage is not None:
        accepted = "accepted" if report.socket_accepted else "not accepted"
        table.add_row("service", text(report.storage.service_name or "(none)"))
        table.add_row("environment", text(report.storage.service_environment or "(none)"))
        table.add_row("socket", text(f"{report.storage.socket_path or '(none)'}  {accepted}"))
    return [table] if table.row_count else [text("No library that publishes is loaded.")]


def _thread_table(threads: tuple[ThreadReading, ...]) -> RenderableType:
    # 100 columns in all: a tid of 7 digits, a name of 15, 3 flags, 32 + 16 + 16 digits, and a space between each two.
    table = _table_by_tid()
    for title, width in (("thread", 6), ("V", 1), ("P", 1), ("F", 2), ("trace", 32), ("span", 16), ("transaction", 16)):
        table.add_column(title, min_width=width, no_wrap=True)
    for thread in threads:
        table.add_row(str(thread.tid), text(thread.name), *_record_cells(thread.correlation, thread.was_stopped))
    return Group(table, text("V valid byte, P trace present, F trace flags", style="dim"))


def _record_cells(record: CorrelationRecord | None, was_stopped: bool) -> list[RenderableType]:
    if record is None:
        return ["", "", "", text("nothing" if was_stopped else "not read", style="dim"), "", ""]
    cells = [str(min(record.valid, 9)), str(min(record.trace_present, 9)), f"{record.trace_flags:02x}"]
    if not record.trace_present:
        return [*cells, text("no trace", style="dim"), "", ""]
    style = "" if record.is_usable else "yellow"
    return [*cells, *(text(one, style=style) for one in (record.trace_id, record.span_id, record.transaction_id))]


def _label_table(threads: list[ThreadReading]) -> RenderableType:
    table = _table_by_tid()
    table.add_column("labels", overflow="fold")
    for thread in threads:
        labels = (f"{_decode_text(label.key)}={_decode_text(label.value)}" for label in thread.labels or ())
        table.add_row(str(thread.tid), text("  ".join(labels)))
    return table


def _table_by_tid() -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("tid", no_wrap=True, justify="right")
    return table


def _reason_table(reasons: tuple[Reason, ...]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for reason in reasons:
        level = reason.level.value
        where = f", thread {', '.join(map(str, reason.tids[:_MAX_TIDS_SHOWN]))}" if reason.tids else ""
        if len(reason.tids) > _MAX_TIDS_SHOWN:
            where += f" and {len(reason.tids) - _MAX_TIDS_SHOWN} more"
        table.add_row(text(_MARKS[level], style=_STYLES[level]), reason.interface.value, text(reason.text + where))
        table.add_row("", "", text(f"→ {reason.remedy} [{reason.code}]", style="bold"))
    return table


def _mode_name(report: Report) -> str:
    return "strict-host" if report.strict_host else "spec"


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
