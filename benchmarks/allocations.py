"""The cost of memory profiling in a JSON service: CPU time per request, and memory, of ours and of others.

Cases: `sampling` (all but memory), `memory`, `tracemalloc` with one frame, and `loaded` (the extension is imported,
nothing is started): that must leave Python's allocators as they are. ``--peers`` adds the memory profilers of ddtrace
and pyroscope-io at their defaults, each in an environment made for it.

Each case is switched on and off by turns of a tenth of a second in one process: two processes that do the same differ
by more than what is to be measured, and so does one within seconds. CPU time is that of the whole process, with the
profiler's threads. All have OpenTelemetry's SDK, as a service with spans does, so that its modules do not count as the
profiler's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

from installations import Installer, MissingError
from result import Result, median, middle_half

PROCESSES, TURNS, SECONDS = 3, 100, 0.1
CPU_LIMIT = 2.0  # percent
MEMORY_LIMIT = 5.0  # MiB
WORKER = """
import json, sys, time
import opentelemetry.sdk.trace
case, turns, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
document = {"items": [{"id": i, "name": f"item {i}", "price": i * 1.5, "tags": ["a", "b"]} for i in range(60)]}
text = json.dumps(document)

def serve(seconds):
    until, count, started = time.perf_counter() + seconds, 0, time.process_time()
    while time.perf_counter() < until:
        json.dumps(json.loads(text))
        count += 1
    return count / (time.process_time() - started)

def on():
    pass

off = on
if case in ("sampling", "memory"):
    import splunk_profiler
    config = splunk_profiler.Config(
        enabled=True, output="stream:/dev/shm/allocations-benchmark", memory_enabled=case == "memory"
    )
    def on():
        assert splunk_profiler.start(config)
    off = splunk_profiler.stop
elif case == "tracemalloc":
    import tracemalloc
    on, off = tracemalloc.start, tracemalloc.stop
elif case == "ddtrace":
    from ddtrace.internal.datadog.profiling import ddup
    from ddtrace.profiling.collector.memalloc import MemoryCollector
    ddup.config(service="shop")
    ddup.start()
    collector = MemoryCollector()
    on, off = collector.start, collector.stop
elif case == "pyroscope-io":
    import pyroscope
    def on():
        pyroscope.configure(
            application_name="shop", server_address="http://127.0.0.1:9", mem_enabled=True, cpu_enabled=False
        )
    off = pyroscope.shutdown
on()
serve(15 * seconds)
with open("/proc/self/status") as status:
    peak_kib = next(line.split()[1] for line in status if line.startswith("VmHWM:"))
lost, state = [], on
for turn in range(turns if off is not on else 0):
    rates = {}
    for switch in (off, on) if turn % 2 else (on, off):
        if switch is not state:
            switch()
            state = switch
        serve(seconds / 5)
        rates[switch] = serve(seconds)
    lost.append(100 * (1 - rates[on] / rates[off]))
print(json.dumps({"lost": lost, "peak_mib": int(peak_kib) / 1024}))
"""
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
CASES = ("nothing", "sampling", "memory", "tracemalloc")
PEERS = ("ddtrace", "pyroscope-io")


def run_case(python: str, case: str, turns: int, seconds: float) -> tuple[list[float], float]:
    """Return the CPU that each turn lost (%) and the largest resident memory (MiB) of one process."""
    command = [python, "-c", WORKER, case, str(turns), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["lost"], found["peak_mib"]


def install_peers() -> Iterator[tuple[str, str, str]]:
    """Yield the name, interpreter and version of each peer; say which cannot be installed."""
    for name in PEERS:
        try:
            installed = Installer(sys.executable).install_package(name)
            yield name, installed.python, installed.version
        except MissingError as error:
            print(json.dumps({"measure": f"allocations, {name}", "missing": str(error)}), flush=True)


def measure(quick: bool, peers: bool = False) -> Iterator[Result]:
    """Measure all cases, each in processes of its own."""
    processes, turns, seconds = (1, 2, 0.02) if quick else (PROCESSES, TURNS, SECONDS)
    pythons, labels = dict.fromkeys(CASES, sys.executable), {case: case for case in CASES}
    for name, python, version in install_peers() if peers else ():
        pythons[name], labels[name] = python, f"{name} {version}"
    seen = [
        {case: run_case(python, case, turns, seconds) for case, python in pythons.items()} for _ in range(processes)
    ]
    for case in list(pythons)[1:]:
        losses = [lost for found in seen for lost in found[case][0]]
        added = [found[case][1] - found["nothing"][1] for found in seen]
        is_ours, name = case == "memory", f"allocations, {labels[case]}"
        details = {"middle_half": middle_half(losses), "turns": len(losses)}
        limit = CPU_LIMIT if is_ours else None
        yield Result(f"{name}: CPU per request added", median(losses), "%", limit, details=details)
        yield Result(f"{name}: memory added", median(added), "MiB", MEMORY_LIMIT if is_ours else None)
    changed = subprocess.run([sys.executable, "-c", ALLOCATORS], capture_output=True, text=True, check=True).stdout
    yield Result("allocations, loaded: functions of Python's allocators replaced", int(changed), "functions", 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    parser.add_argument("--peers", action="store_true", help="also measure the memory profilers of others")
    arguments = parser.parse_args()
    for result in measure(arguments.quick, arguments.peers):
        print(result.line(), flush=True)
