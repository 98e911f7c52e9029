"""The command line of the reliability run: ``python -m soak [--seconds N | --quick] [WORD …]``.

Prints a line of JSON for each scenario and a table for docs/reliability.md. Exit status 1 if a promise was broken.
WORDs choose the scenarios whose names contain all of them. Stays on the loopback interface and ends by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from soak.collector import Collector
from soak.plan import FULL_S, MAX_CONCURRENT, SCENARIOS, Scenario, allot_seconds
from soak.runner import Report, Run

QUICK_S = 20.0
QUICK = (
    *("fork_storm text native", "outages pprof native", "exporter_faults text native"),
    *("thread_churn text native", "span_churn pprof native"),
)
_COLUMNS = ("scenario", "done", "seconds", "memory, MiB", "records", "arrived", "broken promises")


def main() -> int:
    """Run the scenarios and print their reports."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only scenarios with these words in their names")
    parser.add_argument("--seconds", type=float, default=FULL_S, help="how long it may take")
    parser.add_argument("--quick", action="store_true", help="a part of it, in about half a minute")
    arguments = parser.parse_args()
    seconds = QUICK_S if arguments.quick else arguments.seconds
    chosen = tuple(
        scenario
        for scenario in SCENARIOS
        if all(word in scenario.name for word in arguments.words)
        and (scenario.name in QUICK or scenario.program.startswith("sig") or not arguments.quick)
    )
    if not chosen:
        parser.error(f"no scenario is called so; there are {', '.join(scenario.name for scenario in SCENARIOS)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a shell has started this in the background
    machine = f"{platform.machine()}, {os.cpu_count()} processors, CPython {platform.python_version()}"
    print(json.dumps({"machine": machine, "day": time.strftime("%Y-%m-%d"), "seconds": seconds}), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    reports = _run(chosen, seconds, folder)
    print(_table(reports, machine))
    broken = sum(len(report.faults) for report in reports)
    if broken:
        print(f"{broken} promises were broken; what the processes said is in {folder}", file=sys.stderr)
    return 1 if broken else 0


def _run(scenarios: tuple[Scenario, ...], seconds: float, folder: Path) -> list[Report]:
    allowed = allot_seconds(scenarios, seconds)
    reports = []
    with Collector(folder / "silent") as silent, ThreadPoolExecutor(MAX_CONCURRENT) as lanes:
        silent.switch("silent")
        running = [
            lanes.submit(
                Run(
                    scenario,
                    max(int(scenario.count * seconds / FULL_S), 1),
                    allowed[scenario.name],
                    folder / scenario.name.replace(" ", "-"),
                    silent.url,
                ).run
            )
            for scenario in scenarios
        ]
        for done in as_completed(running):
            reports.append(done.result())
            print(reports[-1].line(), flush=True)
    order = [scenario.name for scenario in scenarios]
    return sorted(reports, key=lambda report: order.index(report.name))


def _table(reports: list[Report], machine: str) -> str:
    """Format the summary in Markdown."""
    rows = [_COLUMNS, ("---", "---:", "---:", "---:", "---:", "---:", "---")]
    totals: defaultdict[str, int] = defaultdict(int)
    for report in reports:
        totals[report.unit] += report.done
        before, after = report.memory
        rows.append(
            (
                report.name,
                f"{report.done:,} of {report.expected:,} {report.unit}",
                f"{report.seconds:.0f}",
                f"{before:.0f} → {after:.0f}",
                f"{report.records['recorded']:,}",
                f"{report.arrived:,}",
                "; ".join(report.faults) or "none",
            )
        )
    sums = ", ".join(f"{count:,} {unit}" for unit, count in totals.items())
    faults = [fault.lower() for report in reports for fault in report.faults]
    hangs, crashes = (sum(word in fault for fault in faults) for word in ("hang", "ended with"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(
        ["", *lines, "", f"{sums}: {hangs} hangs, {crashes} crashes, {len(faults)} broken promises ({machine})."]
    )


if __name__ == "__main__":
    sys.exit(main())
