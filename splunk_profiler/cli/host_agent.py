"""``splunk-profiler host-agent``: a small stand-in for a host profiler, to try the correlation on one machine.

Runs on the main thread, which stops and reads the threads of the processes. Signals are taken synchronously between
samples, so none arrives while a thread is stopped. Imports the inspector late.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from splunk_profiler.cli.agent_events import draw, format_event, to_dict, totals_to_dict
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.signals import block_signals, wait_until_deadline
from splunk_profiler.cli.terminal import make_console

if TYPE_CHECKING:
    from splunk_profiler.inspector.agent import Settings
    from splunk_profiler.inspector.events import Event, Totals

_MAX_U16, _MAX_U32 = (1 << 16) - 1, (1 << 32) - 1


@click.command("host-agent")
@click.argument("pids", type=click.IntRange(1), nargs=-1, required=True, metavar="PID...")
@click.option(
    "--rate", type=click.FloatRange(1, 1000), default=20.0, show_default=True, metavar="HZ", help="Samples a second."
)
@click.option(
    "--duration",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End after this time; otherwise at Ctrl-C or when all processes have ended.",
)
@click.option("--children", is_flag=True, help="Also follow the processes that the given ones fork.")
@click.option("--off-cpu", is_flag=True, help="Sample sleeping threads as well, not only those on a CPU.")
@click.option(
    "--report-interval",
    type=click.FloatRange(0.01, 3600),
    metavar="SECONDS",
    help="Gather samples this long and send equal ones as one message with a count; otherwise each at once.",
)
@click.option(
    "--samples-delay",
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
def host_agent(  # noqa: PLR0917
    pids: tuple[int, ...],
    rate: float,
    duration: float | None,
    children: bool,
    off_cpu: bool,
    report_interval: float | None,
    samples_delay: int | None,
    host_id: str | None,
    registration_minor: int,
    no_register: bool,
    as_json: bool,
) -> int:
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
    from splunk_profiler.inspector.agent import Settings  # noqa: PLC0415

    settings = Settings(
        period_s=1 / rate,
        report_period_s=report_interval,
        samples_delay_ms=samples_delay,
        duration_s=duration,
        off_cpu=off_cpu,
        children=children,
        send_registrations=not no_register,
        host_id=host_id,
        registration_minor=registration_minor,
    )
    try:
        with block_signals():
            totals = _run(pids, settings, as_json=as_json)
        return int(totals.processes <= totals.given_up)
    except InspectorError as error:
        raise CommandError(str(error)) from None


def _run(pids: tuple[int, ...], settings: Settings, *, as_json: bool) -> Totals:
    from splunk_profiler.inspector.agent import HostAgent  # noqa: PLC0415

    console = make_console()

    def on_event(event: Event) -> None:
        if as_json:
            print_json(to_dict(event, time.time_ns()))
        else:
            console.print(format_event(event, time.localtime()), soft_wrap=True)

    with HostAgent(pids, settings, on_event=on_event, clock=time.monotonic, wait=wait_until_deadline) as agent:
        totals = agent.run()
    if as_json:
        print_json(totals_to_dict(totals, time.time_ns()))
    else:
        console.print(draw(totals))
    return totals
