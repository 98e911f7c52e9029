"""All measures, one JSON line for each figure, with its target beside it: ``make bench``.

    python benchmarks/run.py [--quick] [MEASURE ...]

Each measure is a program in this folder and runs in a fresh interpreter. A missed target is reported (``"met": false``)
and is not a failure; a measure that cannot run is one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEASURES = (
    "capture_cost",
    "collection_cost",
    "idle_threads",
    "ticks",
    "where_time_goes",
    "throughput",
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
    "memory",
)


def machine() -> dict[str, object]:
    """Describe the machine."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in cpus if line.startswith("model name")), "")
    return {
        "machine": f"{platform.machine()} {model}".strip(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "day": time.strftime("%Y-%m-%d"),
    }


def main() -> int:
    """Run the chosen measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    arguments = parser.parse_args()
    unknown = set(arguments.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    print(json.dumps(machine()), flush=True)
    failed = []
    for name in arguments.measures or MEASURES:
        command = [sys.executable, str(HERE / f"{name}.py"), *(["--quick"] if arguments.quick else [])]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"not taken: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
