"""``splunk-profiler inspect``: shows what a host profiler would see of a process.

Runs on the main thread, which stops and reads the threads of the process. Signals are taken synchronously between
reads, so none arrives while a thread is stopped. Imports the inspector late.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.inspection import draw, to_dict
from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.signals import block_signals, wait_until_deadline
from splunk_profiler.cli.terminal import make_console

if TYPE_CHECKING:
    from splunk_profiler.inspector import Reader, Report


@click.command()
@click.argument("pid", type=click.IntRange(1))
@click.option("--watch", is_flag=True, help="Read again and again, until Ctrl-C or the end of the process.")
@click.option(
    "--interval", type=click.FloatRange(0.01, 3600), default=1.0, show_default=True, help="Seconds between reads."
)
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
            return _show(reader, interval if watch else None, as_json=as_json)
    except InspectorError as error:
        raise CommandError(str(error)) from None


def _show(reader: Reader, interval_s: float | None, *, as_json: bool) -> int:
    if as_json:
        indent = 2 if interval_s is None else None
        return _show_reports(reader, interval_s, lambda report: print_json(to_dict(report), indent=indent))
    console = make_console()
    if interval_s is None or not console.is_terminal:
        return _show_reports(reader, interval_s, lambda report: console.print(draw(report)))
    with Live(console=console, auto_refresh=False, screen=False) as live:
        return _show_reports(reader, interval_s, lambda report: live.update(Group(draw(report)), refresh=True))


def _show_reports(reader: Reader, interval_s: float | None, show: Callable[[Report], None]) -> int:
    deadline = time.monotonic()
    while True:
        report = reader.read()
        show(report)
        code = int(not report.followed_interfaces)
        if interval_s is None:
            return code
        # An absolute deadline; no burst after a read that took longer than the interval.
        deadline = max(deadline + interval_s, time.monotonic())
        if wait_until_deadline(deadline, reader.detach_pending):
            return code
