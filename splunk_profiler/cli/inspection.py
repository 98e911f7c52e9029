"""The inspector's report, as tables or as JSON. Reads no process itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.terminal import text

if TYPE_CHECKING:
    from splunk_profiler.inspector.model import CorrelationRecord, Reason, Report, ThreadReading

_MAX_TIDS_SHOWN = 8
_STYLES = {"blocks": "bold red", "loses": "yellow", "note": "dim"}
_MARKS = {"blocks": "✗", "loses": "!", "note": "·"}


def to_dict(report: Report) -> dict[str, Any]:
    r"""Return the report for JSON; bytes that are not UTF-8 become ``\xNN``."""
    storage = report.storage
    return {
        "pid": report.pid,
        "command": report.command,
        "time_unix_nano": report.time_ns,
        "mode": _mode_name(report),
        "followed": report.followed_interfaces,
        "libraries": [
            {**asdict(library), "interface": library.interface.value, "tls": library.tls.value}
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
        "labels": None
        if thread.labels is None
        else [{"key": _decode_text(label.key), "value": _decode_text(label.value)} for label in thread.labels],
    }


def draw(report: Report) -> RenderableType:
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
    parts += ["", _verdict(report)]
    return Group(*parts)


def _process_tables(report: Report) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for library in report.libraries:
        table.add_row(library.interface.value, text(f"{library.tls.value} TLS  {library.path}"))
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
    cells: list[RenderableType] = [
        str(min(record.valid, 9)),
        str(min(record.trace_present, 9)),
        f"{record.trace_flags:02x}",
    ]
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
        where = f", thread {_tids(reason.tids)}" if reason.tids else ""
        table.add_row(text(_MARKS[level], style=_STYLES[level]), reason.interface.value, text(reason.text + where))
        table.add_row("", "", text(f"→ {reason.remedy} [{reason.code}]", style="bold"))
    return table


def _tids(tids: tuple[int, ...]) -> str:
    shown = ", ".join(str(tid) for tid in tids[:_MAX_TIDS_SHOWN])
    more = len(tids) - _MAX_TIDS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _verdict(report: Report) -> Text:
    if report.followed_interfaces:
        return text(f"A host profiler would follow: {', '.join(report.followed_interfaces)}.", style="bold green")
    return text("A host profiler would see nothing of this process.", style="bold red")


def _mode_name(report: Report) -> str:
    return "strict-host" if report.strict_host else "spec"


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
