"""What `host-agent` has done, as lines for a person or as JSON.

Owns no thread. Consumes the inspector's events and reads no process itself; imports them only when there is one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.terminal import text

if TYPE_CHECKING:
    from splunk_profiler.inspector.events import Event, Totals
    from splunk_profiler.inspector.messages import Registration
    from splunk_profiler.inspector.model import Reason
    from splunk_profiler.inspector.places import CodePlace


def as_data(event: Event, time_ns: int) -> dict[str, Any]:
    """The event as what `json.dumps` takes; `time_ns` is nanoseconds since the epoch."""
    name, facts = _told(event)
    return {"event": name, "time_unix_nano": time_ns, "pid": event.pid, **facts}


def totals_as_data(totals: Totals, time_ns: int) -> dict[str, Any]:
    """The totals likewise."""
    return {
        "event": "totals",
        "time_unix_nano": time_ns,
        "processes": totals.processes,
        "given_up": totals.given_up,
        "messages": totals.messages,
        "samples": totals.samples,
        "lost_messages": totals.lost_messages.total(),
        "lost_samples": totals.lost_samples.total(),
        "lost_samples_by_reason": {loss.value: count for loss, count in totals.lost_samples.items()},
        "registrations": totals.registrations,
        "lost_registrations": totals.lost_registrations,
        "busy_reads": totals.busy,
        "missed_instants": totals.missed,
    }


def _told(event: Event) -> tuple[str, dict[str, Any]]:
    from splunk_profiler.inspector import events  # noqa: PLC0415

    match event:
        case events.Followed(_, command, storage, reasons):
            return "followed", {
                "command": command,
                "service_name": storage.service_name,
                "service_environment": storage.service_environment,
                "socket_path": storage.socket_path,
                "reasons": _reason_data(reasons),
            }
        case events.Unseen(_, command, reasons):
            return "unseen", {"command": command, "reasons": _reason_data(reasons)}
        case events.Registered(_, socket_path, registration, loss):
            facts = {"socket_path": socket_path, **_registration_data(registration)}
            return ("registered", facts) if loss is None else ("registration-lost", {**facts, "reason": loss.value})
        case events.Reported(_, socket_path, sample, count, loss):
            facts = {
                "socket_path": socket_path,
                "trace_id": sample.trace_id,
                "transaction_id": sample.transaction_id,
                "stack_trace_id": sample.place.stack_trace_id,
                "count": count,
                "place": _place(sample.place),
            }
            return ("sent", facts) if loss is None else ("lost", {**facts, "reason": loss.value})
        case events.Busy(_, text) | events.Skipped(_, text) | events.Ended(_, text):
            return type(event).__name__.lower(), {"text": text}


def line(event: Event, now: time.struct_time) -> Text:
    """The event for a person, in one line; `now` is the local time."""
    name, _ = _told(event)
    words, style = _words(event)
    shown = text(time.strftime("%H:%M:%S", now), "dim") + text(f" {event.pid:>7} ")
    return shown + text(f"{name:<12}", style or "bold") + text(f" {words}")


def _words(event: Event) -> tuple[str, str]:
    from splunk_profiler.inspector import events  # noqa: PLC0415

    match event:
        case events.Followed(_, command, storage, reasons):
            who = f"{command}: service {storage.service_name or '(none)'}, socket {storage.socket_path or '(none)'}"
            return (who + _because(reasons), "yellow") if reasons else (who, "")
        case events.Unseen(_, command, reasons):
            return f"{command}, looked at again every second{_because(reasons)}", "yellow"
        case events.Registered(_, _, registration, loss):
            said = f"samples within {registration.samples_delay_ms} ms, host.id {registration.host_id or '(none)'}"
            return (said, "green") if loss is None else (f"{loss.value}, tried again in a second: {said}", "yellow")
        case events.Reported(_, _, sample, count, loss):
            text = f"trace {sample.trace_id}  transaction {sample.transaction_id}  {count} at {_place(sample.place)}"
            return (text, "dim") if loss is None else (f"{text}  {loss.value}", "red")
        case events.Busy(_, text) | events.Skipped(_, text) | events.Ended(_, text):
            return text, "yellow"


def draw(totals: Totals) -> RenderableType:
    """The totals for a person."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    table.add_row("processes followed", f"{totals.processes:,}")
    table.add_row("registrations sent", f"{totals.registrations:,}")
    table.add_row("messages sent", f"{totals.messages:,}")
    table.add_row("samples sent", f"{totals.samples:,}")
    for loss, samples in totals.lost_samples.items():
        table.add_row(f"samples lost, {loss.value}", f"{samples:,}")
    for what, count in (
        ("processes given up", totals.given_up),
        ("registrations lost", totals.lost_registrations),
        ("reads while somebody else held a thread", totals.busy),
        ("instants missed, because the one before took too long", totals.missed),
    ):
        if count:
            table.add_row(what, f"{count:,}")
    return Group("", table)


def _registration_data(registration: Registration) -> dict[str, Any]:
    return {
        "samples_delay_ms": registration.samples_delay_ms,
        "host_id": registration.host_id,
        "minor_version": registration.minor_version,
    }


def _reason_data(reasons: Sequence[Reason]) -> list[dict[str, str]]:
    return [{"code": one.code, "level": one.level.value, "text": one.text, "remedy": one.remedy} for one in reasons]


def _because(reasons: Sequence[Reason]) -> str:
    return "".join(f"; {reason.text} [{reason.code}]" for reason in reasons)


def _place(place: CodePlace) -> str:
    return f"{place.file}+{place.offset:#x}" if place.offset else place.file
