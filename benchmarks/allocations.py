"""The cost of memory profiling in a JSON service: CPU time per request, and memory, of ours and of others.

Workloads (`allocating_service.py`): `api`, a traced JSON API over HTTP, and `loop`, the worst case, which only reads
and writes JSON. Cases: `sampling` (all but memory), `memory`, `tracemalloc` with one frame, and `loaded` (the extension
is imported, nothing is started): that must leave Python's allocators as they are. ``--peers`` adds the memory profilers
of ddtrace and pyroscope-io at their defaults, each installed in an environment made for it.

Each case is switched on and off by turns in one process: two processes that do the same differ by more than what is to
be measured, and so does one within seconds. What it costs the serving thread is compared in the tenth of the requests
that others disturbed least, and the CPU time of the profiler's threads is added.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from counting_sink import CountingSink
from installations import Installer, MissingError
from result import Result, median, middle_half, significant

SERVICE = Path(__file__).with_name("allocating_service.py")
PROCESSES, TURNS, SECONDS = 3, 100, 0.1
CPU_LIMIT = 2.0  # percent
MEMORY_LIMIT = 5.0  # MiB
ALLOCATORS = """
import ctypes
class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]
def functions():
    found = []
    for domain in range(3):
        allocator = Allocator()
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
        found += [getattr(allocator, name) for name, _ in Allocator._fields_]
    return found
before = functions()
import splunk_profiler._walker
print(sum(one != other for one, other in zip(before, functions())))
"""
WORKLOADS = ("api", "loop")
CASES = ("sampling", "memory", "tracemalloc")
PEERS = ("ddtrace", "pyroscope-io")


class Case(NamedTuple):
    """A profiler, its version if it is not ours, and the folder of its packages."""

    profiler: str
    version: str = ""
    packages: str = sysconfig.get_path("platlib")


class Seen(NamedTuple):
    """The figures of one process.

    Attributes:
        turns_on: times of a request (s) in each turn with the profiler, and CPU times of the serving thread.
        turns_off: the same in the turns without it.
        least_on: CPU time of the serving thread for a request with the profiler, of the tenth that was least disturbed.
        least_off: the same without it.
        other_threads: CPU time of all other threads with the profiler, as a share of that of the serving thread, less
            the same without.
        added_mib: memory that the profiler added.
    """

    turns_on: list[tuple[float, float]]
    turns_off: list[tuple[float, float]]
    least_on: float
    least_off: float
    other_threads: float
    added_mib: float


def run_case(workload: str, case: Case, turns: int, seconds: float) -> Seen:
    """Measure a case in a process of its own."""
    command = [sys.executable, str(SERVICE), workload, case.profiler, str(turns), str(seconds), case.packages]
    with CountingSink() as sink:
        done = subprocess.run([*command, sink.url], capture_output=True, text=True, check=True)
    return Seen(**json.loads(done.stdout.splitlines()[-1]))


def install_peers() -> Iterator[Case]:
    """Install other profilers; say which cannot be installed."""
    for name in PEERS:
        try:
            installed = Installer(sys.executable).install_package(name)
            prefix = str(Path(installed.python).parents[1])
            yield Case(name, installed.version, sysconfig.get_path("platlib", vars={"platbase": prefix}))
        except MissingError as error:
            print(json.dumps({"measure": f"allocations, {name}", "missing": str(error)}), flush=True)


def summarize(workload: str, case: Case, seen: list[Seen]) -> Iterator[Result]:
    """Return the results of a case; the targets are those of ours in a service."""
    is_target = (workload, case.profiler) == ("api", "memory")
    name = " ".join(filter(None, (f"allocations, {workload},", case.profiler, case.version)))
    pairs = [pair for process in seen for pair in zip(process.turns_on, process.turns_off, strict=True)]
    times, cpu_times = ([100 * (on[column] / off[column] - 1) for on, off in pairs] for column in (0, 1))
    least = [100 * (process.least_on / process.least_off - 1) for process in seen]
    others = [100 * process.other_threads for process in seen]
    added = median(least) + median(others)
    details = {
        "serving thread": [significant(percent) for percent in least],
        "other threads": [significant(percent) for percent in others],
        "serving thread, all turns": median(cpu_times),
        "middle_half": middle_half(cpu_times),
        "turns": len(pairs),
    }
    yield Result(f"{name}: CPU per request added", added, "%", CPU_LIMIT if is_target else None, details=details)
    yield Result(f"{name}: time per request added", median(times), "%", details={"middle_half": middle_half(times)})
    added_mib = median(process.added_mib for process in seen)
    yield Result(f"{name}: memory added", added_mib, "MiB", MEMORY_LIMIT if is_target else None)


def measure(quick: bool, peers: bool = False) -> Iterator[Result]:
    """Measure all cases, each in processes of its own."""
    processes, turns, seconds = (1, 2, 0.0004) if quick else (PROCESSES, TURNS, SECONDS)
    cases = [Case(name) for name in CASES] + (list(install_peers()) if peers else [])
    for workload in WORKLOADS:
        rounds = [[run_case(workload, case, turns, seconds) for case in cases] for _ in range(processes)]
        for case, *seen in zip(cases, *rounds, strict=True):
            yield from summarize(workload, case, seen)
    changed = subprocess.run([sys.executable, "-c", ALLOCATORS], capture_output=True, text=True, check=True).stdout
    yield Result("allocations, loaded: functions of Python's allocators replaced", int(changed), "functions", 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    parser.add_argument("--peers", action="store_true", help="also measure the memory profilers of others")
    arguments = parser.parse_args()
    for result in measure(arguments.quick, arguments.peers):
        print(result.line(), flush=True)
