"""All measures, one JSON line for each figure, with its target beside it: ``make bench``.

    python benchmarks/run.py [--quick] [--python PYTHON] [--before COMMIT] [--peers] [MEASURE ...]

Each measure is a program in this folder and runs in a fresh interpreter. A missed target is reported (``"met": false``)
and is not a failure; a measure that cannot run is one. With ``--python`` this tree is installed for that interpreter
and measured there. With ``--before`` what a user notices is also measured of that commit, installed from a worktree
under build/, and its lines say so. ``--peers`` adds what `peers.py` measures of other profilers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from installations import ROOT, Installer

HERE = Path(__file__).resolve().parent
MEASURES = (
    "capture_cost",
    "collection_cost",
    "event_cost",
    "idle_threads",
    "ticks",
    "where_time_goes",
    "saturated",
    "switched",
    "record_cost",
    "attach_cost",
    "context_switches",
    "deferral",
    "fork_delay",
    "format_cost",
    "pprof_cost",
    "label_pressure",
    "wire_cost",
    "message_loss",
    "message_flood",
    "disabled",
    "start_cost",
    "memory",
    "allocations",
    "viewer_load",
    "flame_frames",
    "clickhouse_view",
)
WITH_PEERS = ("allocations",)
ALSO_BEFORE = ("where_time_goes", "saturated", "record_cost", "attach_cost", "wire_cost", "disabled", "memory")


def machine(python: str) -> dict[str, object]:
    """Describe the machine."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in cpus if line.startswith("model name")), "")
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return {
        "machine": f"{platform.machine()} {model}".strip(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": version,
        "day": time.strftime("%Y-%m-%d"),
    }


def take(python: str, measure: str, options: Sequence[str], version: str = "") -> bool:
    """Run one measure and print its lines; return True if it could run."""
    command = [python, str(HERE / f"{measure}.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown = json.dumps({"version": version, **json.loads(line)}) if version else line.rstrip()
            print(shown, flush=True)
    return process.returncode == 0


def main() -> int:
    """Run the chosen measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    parser.add_argument("--python", help="the interpreter to measure on; without it the one that runs this")
    parser.add_argument("--before", metavar="COMMIT", help=f"also measure this commit: {', '.join(ALSO_BEFORE)}")
    parser.add_argument("--peers", action="store_true", help="also measure other profilers")
    arguments = parser.parse_args()
    unknown = set(arguments.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    base = arguments.python or sys.executable
    installer = Installer(base)
    python = installer.install_tree(ROOT, "measured", extra="test").python if arguments.python else base
    before = installer.install_commit(arguments.before).python if arguments.before else ""
    print(json.dumps(machine(python)), flush=True)
    failed = []
    options = ["--quick"] if arguments.quick else []
    for name in arguments.measures or MEASURES:
        with_peers = ["--peers"] if arguments.peers and name in WITH_PEERS else []
        if not take(python, name, options + with_peers):
            failed.append(name)
        if before and name in ALSO_BEFORE and not take(before, name, options, arguments.before):
            failed.append(f"{name} of {arguments.before}")
    if arguments.peers:
        subprocess.run([sys.executable, str(HERE / "peers.py"), "--python", base, *options], check=True)
    if failed:
        print(f"not taken: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
