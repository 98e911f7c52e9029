"""``splunk-profiler host-agent``: a small stand-in for a host profiler, to try the correlation on one machine.

Runs on the main thread, which stops and reads the threads of the processes. Signals are taken synchronously between
samples, so none arrives while a thread is stopped. Imports the inspector late.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.option_types import FiniteRange, ProcessId
from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.signals import block_signals, wait_until_deadline
from splunk_profiler.cli.terminal import make_console, text

if TYPE_CHECKING:
    from splunk_profiler.inspector.events import Event, Totals
    from splunk_profiler.inspector.model import Reason

_MAX_U16, _MAX_U32 = (1 << 16) - 1, (1 << 32) - 1


@click.command("host-agent")
@click.argument("pids", type=ProcessId(), nargs=-1, required=True, metavar="PID...")
@click.option(
    "--rate", type=FiniteRange(1, 1000), default=20.0, show_default=True, metavar="HZ", help="Samples a second."
)
@click.option(
    "--duration",
    "duration_s",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End after this time; otherwise at Ctrl-C or when all processes have ended.",
)
@click.option("--children", is_flag=True, help="Also follow the processes that the given ones fork.")
@click.option("--off-cpu", is_flag=True, help="Sample sleeping threads as well, not only those on a CPU.")
@click.option(
    "--report-interval",
    "report_period_s",
    type=FiniteRange(0.01, 3600),
    metavar="SECONDS",
    help="Gather samples this long and send equal ones as one message with a count; otherwise each at once.",
)
@click.option(
    "--samples-delay",
    "samples_delay_ms",
    type=click.IntRange(0, _MAX_U32),
    metavar="MS",
    help="Delay to promise when registering.  [default: 100 and the report interval]",
)
@click.option("--host-id", metavar="TEXT", help="host.id to send when registering; otherwise the field is left out.")
@click.option(
    "--registration-minor",
    type=click.IntRange(0, _MAX_U16),
    default=1,
    show_default=True,
    metavar="N",
    help="Minor version of the registration.",
)
@click.option("--no-register", is_flag=True, help="Do not register, as upstream's profiler.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each event, and one with the totals.")
def host_agent(pids: tuple[int, ...], rate: float, no_register: bool, as_json: bool, **options: Any) -> int:
    """Act towards processes PID as a host profiler would: a development tool, no profiler.

    Registers at the socket that each process names, samples the trace context that its threads publish, sends a message
    for each sample, and prints what was sent. A "stack trace" is no more than the page of code that the thread was in.

    \b
    splunk-profiler host-agent $(pgrep -of gunicorn) --children
    splunk-profiler host-agent PID --rate 100 --duration 10 --json

    Exit code 0 if it could follow at least one process, 1 if not or if a process cannot be read.
    """
    if sys.platform != "linux":
        raise CommandError("processes can be sampled from outside on Linux only, as host profilers do")
    from splunk_profiler.inspector import InspectorError  # noqa: PLC0415
    from splunk_profiler.inspector.agent import HostAgent  # noqa: PLC0415
    from splunk_profiler.inspector.followed_process import Settings  # noqa: PLC0415

    settings = Settings(period_s=1 / rate, send_registrations=not no_register, **options)
    console = make_console()

    def on_event(event: Event) -> None:
        if as_json:
            print_json(event_to_dict(event, time.time_ns()))
        else:
            console.print(format_event(event, time.localtime()), soft_wrap=True)

    try:
        with block_signals():
            with HostAgent(pids, settings, on_event=on_event, clock=time.monotonic, wait=wait_until_deadline) as agent:
                totals = agent.run()
            if as_json:
                print_json(totals_to_dict(totals, time.time_ns()))
            else:
                console.print(_draw(totals))
    except InspectorError as error:
        raise CommandError(str(error)) from None
    return int(totals.processes <= totals.given_up)


def event_to_dict(event: Event, time_ns: int) -> dict[str, Any]:
    """Return the event for JSON; `time_ns` is nanoseconds since the epoch."""
    view = _describe_event(event)
    return {"event": view.name, "time_unix_nano": time_ns, "pid": event.pid, **view.facts}


def format_event(event: Event, now: time.struct_time) -> Text:
    """Return the event as one line of text; `now` is the local time."""
    view = _describe_event(event)
    prefix = text(time.strftime("%H:%M:%S", now), "dim") + text(f" {event.pid:>7} ")
    return prefix + text(f"{view.name:<12}", view.style) + text(f" {view.words}")


class _EventView(NamedTuple):
    """An event for JSON (`facts`) and for a person (`words` and their `style`)."""

    name: str
    facts: dict[str, Any]
    words: str
    style: str


def _describe_event(event: Event) -> _EventView:
    from splunk_profiler.inspector import events  # noqa: PLC0415

    facts: dict[str, Any]
    match event:
        case events.Followed(_, command, storage, reasons):
            facts = {
                "command": command,
                "service_name": storage.service_name,
                "service_environment": storage.service_environment,
                "socket_path": storage.socket_path,
                "reasons": _reasons_to_dicts(reasons),
            }
            words = f"{command}: service {storage.service_name or '(none)'}, socket {storage.socket_path or '(none)'}"
            words += _reasons_text(reasons)
            name, style = "followed", "yellow" if reasons else "bold"
        case events.NotReady(_, command, reasons):
            facts = {"command": command, "reasons": _reasons_to_dicts(reasons)}
            words = f"{command}, looked at again every second{_reasons_text(reasons)}"
            name, style = "unseen", "yellow"
        case events.Registered(_, socket_path, registration, loss):
            facts = {"socket_path": socket_path, **asdict(registration)}
            words = f"samples within {registration.samples_delay_ms} ms, host.id {registration.host_id or '(none)'}"
            name, style = "registered", "green"
            if loss is not None:
                facts["reason"] = loss.value
                words = f"{loss.value}, tried again in a second: {words}"
                name, style = "registration-lost", "yellow"
        case events.Reported(_, socket_path, sample, count, loss):
            location = sample.location
            place = f"{location.file}+{location.offset:#x}" if location.offset else location.file
            facts = {
                "socket_path": socket_path,
                "trace_id": sample.trace_id,
                "transaction_id": sample.transaction_id,
                "stack_trace_id": location.stack_trace_id,
                "count": count,
                "place": place,
            }
            words = f"trace {sample.trace_id}  transaction {sample.transaction_id}  {count} at {place}"
            name, style = "sent", "dim"
            if loss is not None:
                facts["reason"] = loss.value
                words = f"{words}  {loss.value}"
                name, style = "lost", "red"
        case events.Busy(_, words) | events.Skipped(_, words) | events.Ended(_, words):
            facts = {"text": words}
            name, style = type(event).__name__.lower(), "yellow"
    return _EventView(name, facts, words, style)


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


def _draw(totals: Totals) -> Group:
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
        ("reads while another tracer held a thread", totals.busy_reads),
        ("instants missed, because the one before took too long", totals.missed),
    ):
        if count:
            table.add_row(what, f"{count:,}")
    return Group("", table)


def _reasons_to_dicts(reasons: Sequence[Reason]) -> list[dict[str, str]]:
    return [{"code": one.code, "level": one.level.value, "text": one.text, "remedy": one.remedy} for one in reasons]


def _reasons_text(reasons: Sequence[Reason]) -> str:
    return "".join(f"; {reason.text} [{reason.code}]" for reason in reasons)
