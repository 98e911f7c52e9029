"""``splunk-profiler doctor``: would samples flow in this environment, or in that of a running process?

Runs on the main thread: asks `checks` and `running`, and draws what they found.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

import click
from rich.table import Table

from splunk_profiler.cli import checks, receivers
from splunk_profiler.cli.checks import Finding, Verdict
from splunk_profiler.cli.host_profilers import host_profilers
from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.running import environment_of, process
from splunk_profiler.cli.terminal import Terminal, page, text
from splunk_profiler.config import Resolved, environment, from_env
from splunk_profiler.config.parsers import Nowhere

_MARKS = {
    Verdict.GOOD: text("✓", style="green"),
    Verdict.NOTE: text("·", style="dim"),
    Verdict.WARNING: text("!", style="bold yellow"),
    Verdict.FAILURE: text("✗", style="bold red"),
}


@click.command()
@click.option("--pid", type=click.IntRange(1), metavar="N", help="Look at this running process and its environment.")
@click.option("--no-export", is_flag=True, help="Send no test records.")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as JSON.")
def doctor(pid: int | None, no_export: bool, as_json: bool) -> int:
    """Say whether samples would flow, and if not, why.

    Looks at the settings in effect and where each came from, at this Python and its packages, at the way to
    the collector, the directory or the Datadog agent, and sends one real sample of itself there. Ask it in the
    environment of the service:

    \b
    splunk-profiler run [OPTIONS] -- splunk-profiler doctor
    splunk-profiler doctor --pid $(pgrep -of gunicorn)

    Exit code 0 if samples would flow, 1 if not.
    """
    logging.basicConfig(level=logging.CRITICAL)  # what would be logged is said here, as findings
    env = environment() if pid is None else environment_of(pid)
    resolved = from_env(env)
    sections = {
        "Switch": [*checks.switches(resolved), *checks.activation(env)],
        "Interpreter": checks.interpreter(resolved),
        "Samples": checks.filters(resolved),
        "Destination": receivers.destination(resolved, env),
        "Host profilers": host_profilers(resolved, env),
    }
    if pid is not None:
        sections = {"Process": process(pid, receivers.lasting_connection(resolved)), **sections}
    if not no_export and not isinstance(resolved.destination, Nowhere):
        sections["Test"] = receivers.export(resolved)
    failed = any(found.verdict is Verdict.FAILURE for section in sections.values() for found in section)
    if as_json:
        print_json(_as_data(resolved, sections, failed), indent=2)
    else:
        _draw(page(), resolved, sections, failed)
    return int(failed)


def _as_data(resolved: Resolved, sections: dict[str, list[Finding]], failed: bool) -> dict[str, object]:
    return {
        "samples_would_flow": not failed,
        "settings": [
            {"name": name, "value": value, "origin": origin} for name, value, origin in checks.settings(resolved)
        ],
        "endpoint": None if resolved.endpoint is None else asdict(resolved.endpoint),
        "findings": [
            {
                "section": title,
                "verdict": found.verdict.value,
                "subject": found.subject,
                "fact": found.fact,
                "remedy": found.remedy,
            }
            for title, section in sections.items()
            for found in section
        ],
    }


def _draw(console: Terminal, resolved: Resolved, sections: dict[str, list[Finding]], failed: bool) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value, origin in checks.settings(resolved):
        usual = origin == "default"
        table.add_row(
            text(f"  {name}", style="dim" if usual else "cyan"),
            text(value or "(not set)", style="dim" if usual else "bold"),
            text(origin, style="dim"),
        )
    _title(console, "Settings in effect")
    console.print(table)
    for title, section in sections.items():
        _title(console, title)
        rows = Table.grid(padding=(0, 1))
        rows.add_column()
        rows.add_column(no_wrap=True)
        rows.add_column(overflow="fold")
        for found in section:
            rows.add_row(_MARKS[found.verdict], text(found.subject, style="dim"), text(found.fact))
            if found.remedy:
                rows.add_row("", "", text(f"→ {found.remedy}", style="bold"))
        console.print(rows)
    console.print()
    causes = [found for section in sections.values() for found in section if found.verdict is Verdict.FAILURE]
    if failed:
        console.print(text("Samples would not flow:", style="bold red"))
        for found in causes:
            console.print(text(f"  {found.subject}: {found.fact}"))
    else:
        console.print(text("Samples would flow.", style="bold green"))


def _title(console: Terminal, title: str) -> None:
    console.print()
    console.print(text(title, style="bold"))
