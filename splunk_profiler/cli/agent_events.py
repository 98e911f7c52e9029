"""Events of `host-agent`, as lines of text or as JSON.

Consumes the inspector's events; imports the inspector only when it gets one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.terminal import text

if TYPE_CHECKING:
    from splunk_profiler.inspector.code_locations import CodeLocation
    from splunk_profiler.inspector.events import Event, Totals
    from splunk_profiler.inspector.model import Reason


def to_dict(event: Event, time_ns: int) -> dict[str, Any]:
    """Return the event for JSON; `time_ns` is nanoseconds since the epoch."""
    name, facts = _event_facts(event)
    return {"event": name, "time_unix_nano": time_ns, "pid": event.pid, **facts}


def totals_to_dict(totals: Totals, time_ns: int) -> dict[str, Any]:
    """Return the totals for JSON; `time_ns` is nanoseconds since the epoch."""
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
        "busy_reads": totals.busy_reads,
        "missed_instants": totals.missed,
    }


def _event_facts(event: Event) -> tuple[str, dict[str, Any]]:
    from splunk_profiler.inspector import events  # noqa: PLC0415

    match event:
        case events.Followed(_, command, storage, reasons):
            return "followed", {
                "command": command,
                "service_name": storage.service_name,
                "service_environment": storage.service_environment,
                "socket_path": storage.socket_path,
                "reasons": _reasons_to_dicts(reasons),
            }
        case events.Unseen(_, command, reasons):
            return "unseen", {"command": command, "reasons": _reasons_to_dicts(reasons)}
        case events.Registered(_, socket_path, registration, loss):
            facts = {"socket_path": socket_path, **asdict(registration)}
            return ("registered", facts) if loss is None else ("registration-lost", {**facts, "reason": loss.value})
        case events.Reported(_, socket_path, sample, count, loss):
            facts = {
                "socket_path": socket_path,
                "trace_id": sample.trace_id,
                "transaction_id": sample.transaction_id,
                "stack_trace_id": sample.location.stack_trace_id,
                "count": count,
                "place": _format_location(sample.location),
            }
            return ("sent", facts) if loss is None else ("lost", {**facts, "reason": loss.value})
        case events.Busy(_, text) | events.Skipped(_, text) | events.Ended(_, text):
            return type(event).__name__.lower(), {"text": text}


def format_event(event: Event, now: time.struct_time) -> Text:
    """Return the event as one line of text; `now` is the local time."""
    name, _ = _event_facts(event)
    words, style = _event_text(event)
    prefix = text(time.strftime("%H:%M:%S", now), "dim") + text(f" {event.pid:>7} ")
    return prefix + text(f"{name:<12}", style) + text(f" {words}")


def _event_text(event: Event) -> tuple[str, str]:
    from splunk_profiler.inspector import events  # noqa: PLC0415

    match event:
        case events.Followed(_, command, storage, reasons):
            summary = f"{command}: service {storage.service_name or '(none)'}, socket {storage.socket_path or '(none)'}"
            return (summary + _reasons_text(reasons), "yellow") if reasons else (summary, "bold")
        case events.Unseen(_, command, reasons):
            return f"{command}, looked at again every second{_reasons_text(reasons)}", "yellow"
        case events.Registered(_, _, registration, loss):
            text = f"samples within {registration.samples_delay_ms} ms, host.id {registration.host_id or '(none)'}"
            return (text, "green") if loss is None else (f"{loss.value}, tried again in a second: {text}", "yellow")
        case events.Reported(_, _, sample, count, loss):
            location = _format_location(sample.location)
            text = f"trace {sample.trace_id}  transaction {sample.transaction_id}  {count} at {location}"
            return (text, "dim") if loss is None else (f"{text}  {loss.value}", "red")
        case events.Busy(_, text) | events.Skipped(_, text) | events.Ended(_, text):
            return text, "yellow"


def draw(totals: Totals) -> RenderableType:
    """Return the totals as a table."""
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
        ("reads while somebody else held a thread", totals.busy_reads),
        ("instants missed, because the one before took too long", totals.missed),
    ):
        if count:
            table.add_row(what, f"{count:,}")
    return Group("", table)


def _reasons_to_dicts(reasons: Sequence[Reason]) -> list[dict[str, str]]:
    return [{"code": one.code, "level": one.level.value, "text": one.text, "remedy": one.remedy} for one in reasons]


def _reasons_text(reasons: Sequence[Reason]) -> str:
    return "".join(f"; {reason.text} [{reason.code}]" for reason in reasons)


def _format_location(location: CodeLocation) -> str:
    return f"{location.file}+{location.offset:#x}" if location.offset else location.file
