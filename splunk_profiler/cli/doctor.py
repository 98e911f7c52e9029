"""``splunk-profiler doctor``: says if samples would flow in this environment, or in that of a running process.

Runs on the main thread. Must not import rich: services are installed without the extra ``tools``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import click

from splunk_profiler import stop
from splunk_profiler.cli import checks, delivery_checks, destination_checks
from splunk_profiler.cli.checks import Finding, Verdict
from splunk_profiler.cli.host_profiler_checks import check_host_profilers
from splunk_profiler.cli.option_types import ProcessId
from splunk_profiler.cli.output import print_json, print_line
from splunk_profiler.cli.process_checks import (
    check_process,
    check_settings,
    environment_of,
    find_exporter,
    shares_namespace,
    user_of,
)
from splunk_profiler.config import Resolved, environment, from_env
from splunk_profiler.config.parsers import NoDestination, StreamDirectory
from splunk_profiler.exporter_process.status import HostStatus, StatusError

_MARKS: dict[Verdict, tuple[str, dict[str, Any]]] = {
    Verdict.GOOD: ("✓", {}),
    Verdict.NOTE: ("·", {"dim": True}),
    Verdict.WARNING: ("!", {"fg": "yellow"}),
    Verdict.FAILURE: ("✗", {"fg": "red"}),
}
_PROBES = {"Destination", "Test"}  # sections with results of probes from here
_PAGE_WIDTH, _MAX_WIDTH, _MIN_WIDTH = 100, 140, 20


@click.command()
@click.option("--pid", type=ProcessId(), metavar="N", help="Look at this running process and its environment.")
@click.option("--no-export", is_flag=True, help="Send no test records.")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as JSON.")
def doctor(pid: int | None, no_export: bool, as_json: bool) -> int:
    """Say whether samples would flow, and if not, why.

    Looks at the settings in effect and where each came from, at this Python and its packages, at the way to
    the collector, the directory or the Datadog agent, and sends one real sample of itself there. Of a running
    process it also says what became of its records, what is lost and why; and what blocked its event loop, if
    it sends profiles and has the native walker. Ask it in the environment of the service:

    \b
    splunk-profiler run [OPTIONS] -- splunk-profiler doctor
    splunk-profiler doctor --pid $(pgrep -of gunicorn)

    Exit code 0 if samples would flow, 1 if not.
    """
    logging.basicConfig(level=logging.CRITICAL)  # the findings say what would be logged
    stop(0)  # under `opentelemetry-instrument` the profiler has started here: it would send more than the test record
    own_env = environment()
    if own_env.get("NO_COLOR"):
        click.get_current_context().color = False
    env = own_env if pid is None else environment_of(pid)
    resolved = None if env is None else from_env(env, directory="" if pid is None else f"/proc/{pid}/cwd")
    sections: dict[str, list[Finding]] = {}
    status = None
    if pid is not None:
        resolved, sections, status = _examine_process(pid, resolved)
    if resolved is not None:
        uid = os.geteuid() if pid is None else user_of(pid)
        sections |= _examine_settings(resolved, env or {}, uid, sends=not no_export, of_another=pid is not None)
        if not isinstance(resolved.destination, NoDestination):
            _downgrade_failed_probes(sections, resolved, pid, status)
    failures = _select(sections, Verdict.FAILURE)
    if as_json:
        of_records = None if status is None else status.to_dict()
        print_json({**_to_dict(resolved, sections, bool(failures)), "records": of_records}, indent=2)
    else:
        _print(resolved, sections, failures)
    return int(bool(failures))


def _examine_process(
    pid: int, resolved: Resolved | None
) -> tuple[Resolved | None, dict[str, list[Finding]], HostStatus | None]:
    """Return the settings of a running process, the sections on it, and what its exporter process says of its records.

    `resolved` are the settings in the environment that it was started with; settings that are not known are None.
    """
    exporter, status = find_exporter(pid), None
    endpoint, doubts = None, check_settings(pid, resolved, exporter)
    if doubts or resolved is None:
        resolved = None
    else:
        endpoint = resolved.endpoint
    target = "" if endpoint is None else endpoint.authority
    needs_walker = resolved is not None and checks.needs_native_walker(resolved)
    of_process = check_process(pid, target, exporter and exporter.pid, needs_walker=needs_walker)
    sections = {"Process": [*of_process, *doubts]}
    if exporter is not None:
        try:
            status = delivery_checks.ask_exporter(exporter)
            sections["Records"] = [*delivery_checks.check_records(status)]
        except StatusError as error:
            sections["Records"] = [delivery_checks.unknown(error)]
    return resolved, sections, status


def _examine_settings(
    resolved: Resolved, env: Mapping[str, str], uid: int, *, sends: bool, of_another: bool
) -> dict[str, list[Finding]]:
    """Return the sections on the settings of a process of `uid`; `sends` a test record."""
    sections = {
        "Switch": [
            *checks.check_switches(resolved),
            *checks.check_names(env),
            *checks.check_activation(env),
            *checks.check_second_profiler(resolved),
        ],
        "Interpreter": [*checks.check_interpreter(resolved, of_another=of_another)],
        "Samples": [
            *checks.check_filters(resolved.config),
            *checks.check_events(resolved.config),
        ],
        "Destination": [*destination_checks.check_destination(resolved, env, uid)],
        "Host profilers": [*check_host_profilers(resolved, env, uid)],
    }
    if sends and not isinstance(resolved.destination, (NoDestination, StreamDirectory)):
        sections["Test"] = [*destination_checks.check_export(resolved, uid)]
    return sections


def _downgrade_failed_probes(
    sections: dict[str, list[Finding]], resolved: Resolved, pid: int | None, status: HostStatus | None
) -> None:
    """Turn failed probes into warnings where records arrive all the same, or the process tries from elsewhere."""
    remedy = ""
    kind, noun = ("mnt", "mount") if destination_checks.is_path(resolved) else ("net", "network")
    if status is not None and delivery_checks.is_delivering(status):
        excuse = "yet the records of the process arrive, perhaps through a proxy"
    elif pid is not None and not shares_namespace(pid, kind):
        excuse = f"this was tried from here, and the process is in another {noun} namespace"
        remedy = "ask in that namespace, as in the container of the process"
    elif "Test" in sections and sections["Test"][-1].verdict is Verdict.GOOD:
        excuse = "yet the test export arrived, perhaps through a proxy"
    else:
        return
    for title in _PROBES & sections.keys():
        sections[title] = [
            replace(finding, verdict=Verdict.WARNING, fact=f"{finding.fact}; {excuse}", remedy=remedy or finding.remedy)
            if finding.verdict is Verdict.FAILURE
            else finding
            for finding in sections[title]
        ]


def _select(sections: dict[str, list[Finding]], verdict: Verdict) -> list[Finding]:
    return [finding for section in sections.values() for finding in section if finding.verdict is verdict]


def _to_dict(resolved: Resolved | None, sections: dict[str, list[Finding]], failed: bool) -> dict[str, object]:
    endpoint = None if resolved is None else resolved.endpoint
    return {
        "samples_would_flow": not failed,
        "settings": [] if resolved is None else [setting._asdict() for setting in checks.settings(resolved)],
        "endpoint": endpoint
        and {
            "url": endpoint.url,
            "target": endpoint.target,
            "secure": endpoint.is_secure,
            "setting": endpoint.setting,
        },
        "findings": [
            {"section": title, **asdict(finding), "verdict": finding.verdict.value}
            for title, section in sections.items()
            for finding in section
        ],
    }


def _print(resolved: Resolved | None, sections: dict[str, list[Finding]], failures: list[Finding]) -> None:
    if resolved is not None:
        _print_settings(resolved)
    for title, section in sections.items():
        _print_title(title)
        width = max((len(finding.subject) for finding in section), default=0)
        for finding in section:
            mark, style = _MARKS[finding.verdict]
            _print_row(f"{mark} {finding.subject:{width}} ", finding.fact, **style)
            if finding.remedy:
                _print_row(" " * (width + 3), f"→ {finding.remedy}", bold=True)
    if failures:
        _print_title("Samples would not flow:", fg="red")
        for finding in failures:
            print_line(f"  {finding.subject}: {finding.fact}")
    else:
        warns = bool(_select(sections, Verdict.WARNING))
        title = "Samples would flow; see what is marked with ! above." if warns else "Samples would flow."
        _print_title(title, fg="yellow" if warns else "green")


def _print_settings(resolved: Resolved) -> None:
    _print_title("Settings in effect")
    settings = [(f"  {name}", value or "(not set)", origin) for name, value, origin in checks.settings(resolved)]
    widths = [max(len(row[column]) for row in settings) for column in range(2)]
    for name, value, origin in settings:
        print_line(f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}", dim=origin == "default")


def _print_title(title: str, **style: Any) -> None:
    print_line("")
    print_line(title, bold=True, **style)


def _print_row(start: str, words: str, **style: Any) -> None:
    """Print `words` after `start`, wrapped to the terminal (140 columns at most) or to 100 columns without one."""
    width = min(get_terminal_size().columns, _MAX_WIDTH) if sys.stdout.isatty() else _PAGE_WIDTH
    width = max(width, len(start) + _MIN_WIDTH)
    indent = " " * len(start)
    for line in wrap(words, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False) or [start]:
        print_line(line, **style)
