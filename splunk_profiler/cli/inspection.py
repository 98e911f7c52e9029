"""What the inspector has found, drawn for a person or as JSON.

Owns no thread. Consumes the inspector's report and reads no process itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.terminal import text

if TYPE_CHECKING:
    from splunk_profiler.inspector.model import Correlation, Label, Reason, Report, ThreadReading

_TIDS_SHOWN = 8
_STYLES = {"blocks": "bold red", "loses": "yellow", "note": "dim"}
_MARKS = {"blocks": "✗", "loses": "!", "note": "·"}


def as_data(report: Report) -> dict[str, Any]:
    """The report as what `json.dumps` takes; bytes that are no UTF-8 text are written as ``\\xNN``."""
    storage = report.storage
    return {
        "pid": report.pid,
        "command": report.command,
        "time_unix_nano": report.time_ns,
        "mode": _mode(report),
        "followed": report.followed,
        "libraries": [
            {
                "interface": library.interface.value,
                "path": library.path,
                "tls": library.tls.value,
                "offset": library.offset,
            }
            for library in report.libraries
        ],
        "storage": None
        if storage is None
        else {
            "minor_version": storage.minor_version,
            "service_name": storage.service_name,
            "service_environment": storage.service_environment,
            "socket_path": storage.socket_path,
            "socket_accepted": report.socket_accepted,
        },
        "threads": [_thread_data(thread) for thread in report.threads],
        "reasons": [
            {
                "code": reason.code,
                "level": reason.level.value,
                "interface": reason.interface.value,
                "text": reason.text,
                "remedy": reason.remedy,
                "tids": list(reason.tids),
            }
            for reason in report.reasons
        ],
    }


def _thread_data(thread: ThreadReading) -> dict[str, Any]:
    found = thread.correlation
    return {
        "tid": thread.tid,
        "name": thread.name,
        "stopped": thread.stopped,
        "correlation": None
        if found is None
        else {
            "minor_version": found.minor_version,
            "valid": found.valid,
            "trace_present": found.trace_present,
            "trace_flags": found.trace_flags,
            "trace_id": found.trace_id,
            "span_id": found.span_id,
            "transaction_id": found.transaction_id,
        },
        "labels": None
        if thread.labels is None
        else [{"key": _text(label.key), "value": _text(label.value)} for label in thread.labels],
    }


def draw(report: Report) -> RenderableType:
    """The report for a person, at most 100 columns wide."""
    parts: list[RenderableType] = [
        text(f"Process {report.pid} ({report.command}), {_mode(report)} mode", style="bold"),
        "",
        *_about_process(report),
        "",
        _threads(report.threads),
    ]
    labelled = [thread for thread in report.threads if thread.labels]
    if labelled:
        parts += ["", _labels(labelled)]
    if report.reasons:
        parts += ["", _reasons(report.reasons)]
    parts += ["", _verdict(report)]
    return Group(*parts)


def _about_process(report: Report) -> list[RenderableType]:
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


def _threads(threads: tuple[ThreadReading, ...]) -> RenderableType:
    # 100 columns in all: a tid of 7 digits, a name of 15, 3 flags, 32 + 16 + 16 digits, and a space between each two.
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("tid", no_wrap=True, justify="right")
    for title, width in (("thread", 6), ("V", 1), ("P", 1), ("F", 2), ("trace", 32), ("span", 16), ("transaction", 16)):
        table.add_column(title, min_width=width, no_wrap=True)
    for thread in threads:
        table.add_row(str(thread.tid), text(thread.name), *_record_cells(thread.correlation, thread.stopped))
    return Group(table, text("V valid byte, P trace present, F trace flags", style="dim"))


def _record_cells(found: Correlation | None, stopped: bool) -> list[RenderableType]:
    if found is None:
        return ["", "", "", text("nothing" if stopped else "not read", style="dim"), "", ""]
    cells: list[RenderableType] = [
        str(min(found.valid, 9)),
        str(min(found.trace_present, 9)),
        f"{found.trace_flags:02x}",
    ]
    if not found.trace_present:
        return [*cells, text("no trace", style="dim"), "", ""]
    style = "" if found.usable else "yellow"
    return [*cells, *(text(one, style=style) for one in (found.trace_id, found.span_id, found.transaction_id))]


def _labels(threads: list[ThreadReading]) -> RenderableType:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("tid", no_wrap=True, justify="right")
    table.add_column("labels", overflow="fold")
    for thread in threads:
        assert thread.labels is not None
        table.add_row(str(thread.tid), text("  ".join(_label(label) for label in thread.labels)))
    return table


def _label(label: Label) -> str:
    return f"{_text(label.key)}={_text(label.value)}"


def _reasons(reasons: tuple[Reason, ...]) -> RenderableType:
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
    shown = ", ".join(str(tid) for tid in tids[:_TIDS_SHOWN])
    more = len(tids) - _TIDS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _verdict(report: Report) -> Text:
    if report.followed:
        return text(f"A host profiler would follow: {', '.join(report.followed)}.", style="bold green")
    return text("A host profiler would see nothing of this process.", style="bold red")


def _mode(report: Report) -> str:
    return "strict-host" if report.strict_host else "spec"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
