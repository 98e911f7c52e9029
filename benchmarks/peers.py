"""Profilers that a user would pick instead, measured like ours: the same service, in turns, each in its environment.

    python benchmarks/peers.py [--quick] [--python PYTHON] [--folder FOLDER] [--figures FIGURES] [PROFILER ...]

For each profiler at its default interval, and at 10 ms where it can be set: what `saturated` measures, in a service
whose threads are always busy and in one that is half idle; and the largest error of a kind of work, as
`where_time_goes` measures it. Makes virtual environments for splunk-opentelemetry, ddtrace and pyroscope-io; says what
cannot be installed and goes on without it.

What a profiler means to do differs, and is measured as it means it: ddtrace takes 25 threads of 33 at a time and
stretches its interval to keep to 1 % of CPU time; pyroscope-io by default only sees the thread that has the GIL, whose
share is compared with CPU time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from installations import FOLDER, ROOT, Installation, Installer, MissingError
from profilers import PROFILERS
from result import Result
from saturated import QUICK, Case, Plan, measure_case
from where_time_goes import measure_kinds

FIGURES = ("saturated", "unsaturated", "kinds")
SHORTER = Plan(stretch_s=5.0, windows_before=8, windows_after=16)
KINDS_S = 40.0


def measure_profiler(
    profiler: str, installation: Installation, sink_python: str, figures: Sequence[str], quick: bool
) -> Iterator[Result]:
    """Measure one profiler."""
    name = PROFILERS[profiler].requirement
    label = (
        f"{name} {installation.version}{profiler.removeprefix(name) if profiler.startswith(name) else ', ' + profiler}"
    )
    plans = {"saturated": QUICK if quick else Plan(), "unsaturated": QUICK if quick else SHORTER}
    for interval_ms in sorted({PROFILERS[profiler].default_ms, 10}, reverse=True):
        for shape in [shape for shape in plans if shape in figures]:
            case = Case(profiler, interval_ms, shape, installation.python, label)
            yield from measure_case(case, plans[shape], sink_python)
    if "kinds" in figures:
        yield from measure_kinds(
            Case(profiler, 10, "kinds:0", installation.python, label), 0.5 if quick else KINDS_S, sink_python
        )


def main() -> int:
    """Measure the chosen profilers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profilers", nargs="*", metavar="PROFILER", help=f"of {', '.join(map(repr, PROFILERS))}")
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to measure on")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the environments are made")
    parser.add_argument("--figures", default=",".join(FIGURES), help=f"some of {','.join(FIGURES)}")
    arguments = parser.parse_args()
    installer = Installer(arguments.python, arguments.folder)
    installed: dict[str, Installation] = {}
    for profiler in arguments.profilers or PROFILERS:
        name = PROFILERS[profiler].requirement
        try:
            if name not in installed:
                is_ours = name == "splunk-profiler"
                installed[name] = installer.install_tree(ROOT, name) if is_ours else installer.install_package(name)
            sink_python = installed[name].python if name == "ddtrace" else sys.executable
            figures = arguments.figures.split(",")
            for result in measure_profiler(profiler, installed[name], sink_python, figures, arguments.quick):
                print(result.line(), flush=True)
        except MissingError as error:
            print(json.dumps({"measure": f"{name} on {arguments.python}", "missing": str(error)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
