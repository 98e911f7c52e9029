"""The cost of memory profiling in a JSON service: CPU time per request, and memory, of ours and of others.

Cases: `loaded` (the extension is imported, nothing is started), `sampling` (all but memory), `memory`, and
`tracemalloc` with one frame. ``--peers`` adds the memory profilers of ddtrace and pyroscope-io at their defaults, each
in an environment made for it.

Each round runs all cases in turn, each in a process of its own, so that a change of the machine hits all; a case is
compared with the case `nothing` of its round. CPU time is that of the whole process, with the profiler's threads; other
processes of the machine are not in it. All have OpenTelemetry's SDK, as a service with spans does, so that its modules
do not count as the profiler's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

from installations import Installer, MissingError
from result import Result, median, middle_half

ROUNDS, SECONDS = 8, 2.0
CPU_LIMITS = {"loaded": 0.3, "memory": 2.0}  # percent
MEMORY_LIMITS = {"memory": 5.0}  # MiB
WORKER = """
import json, sys, time
import opentelemetry.sdk.trace
case, seconds = sys.argv[1], float(sys.argv[2])
document = {"items": [{"id": i, "name": f"item {i}", "price": i * 1.5, "tags": ["a", "b"]} for i in range(60)]}
text = json.dumps(document)

def serve(seconds):
    until, count, started = time.perf_counter() + seconds, 0, time.process_time()
    while time.perf_counter() < until:
        json.dumps(json.loads(text))
        count += 1
    return count / (time.process_time() - started)

if case == "loaded":
    import splunk_profiler._walker
elif case in ("sampling", "memory"):
    import splunk_profiler
    config = splunk_profiler.Config(
        enabled=True, output="stream:/dev/shm/allocations-benchmark", memory_enabled=case == "memory"
    )
    assert splunk_profiler.start(config)
elif case == "tracemalloc":
    import tracemalloc
    tracemalloc.start(1)
elif case == "ddtrace":
    from ddtrace.internal.datadog.profiling import ddup
    from ddtrace.profiling.collector.memalloc import MemoryCollector
    ddup.config(service="shop")
    ddup.start()
    MemoryCollector().start()
elif case == "pyroscope-io":
    import pyroscope
    pyroscope.configure(
        application_name="shop", server_address="http://127.0.0.1:9", mem_enabled=True, cpu_enabled=False
    )
serve(0.3)
rate = serve(seconds)
with open("/proc/self/status") as status:
    peak_kib = next(line.split()[1] for line in status if line.startswith("VmHWM:"))
print(rate, int(peak_kib) / 1024)
"""
CASES = ("nothing", "loaded", "sampling", "memory", "tracemalloc")
PEERS = ("ddtrace", "pyroscope-io")


def run_case(python: str, case: str, seconds: float) -> tuple[float, float]:
    """Return the requests per second of CPU and the largest resident memory (MiB) of one process."""
    done = subprocess.run([python, "-c", WORKER, case, str(seconds)], capture_output=True, text=True, check=True)
    rate, memory = map(float, done.stdout.split()[-2:])
    return rate, memory


def install_peers() -> Iterator[tuple[str, str, str]]:
    """Yield the name, interpreter and version of each peer; say which cannot be installed."""
    for name in PEERS:
        try:
            installed = Installer(sys.executable).install_package(name)
            yield name, installed.python, installed.version
        except MissingError as error:
            print(json.dumps({"measure": f"allocations, {name}", "missing": str(error)}), flush=True)


def measure(quick: bool, peers: bool = False) -> Iterator[Result]:
    """Measure all cases in turns."""
    rounds, seconds = (1, 0.02) if quick else (ROUNDS, SECONDS)
    pythons, labels = dict.fromkeys(CASES, sys.executable), {case: case for case in CASES}
    for name, python, version in install_peers() if peers else ():
        pythons[name], labels[name] = python, f"{name} {version}"
    seen = [{case: run_case(python, case, seconds) for case, python in pythons.items()} for _ in range(rounds)]
    for case in list(pythons)[1:]:
        losses = [100 * (1 - found[case][0] / found["nothing"][0]) for found in seen]
        added = [found[case][1] - found["nothing"][1] for found in seen]
        name = f"allocations, {labels[case]}"
        details = {"middle_half": middle_half(losses), "rounds": rounds}
        yield Result(f"{name}: CPU per request added", median(losses), "%", CPU_LIMITS.get(case), details=details)
        yield Result(f"{name}: memory added", median(added), "MiB", MEMORY_LIMITS.get(case))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    parser.add_argument("--peers", action="store_true", help="also measure the memory profilers of others")
    arguments = parser.parse_args()
    for result in measure(arguments.quick, arguments.peers):
        print(result.line(), flush=True)
