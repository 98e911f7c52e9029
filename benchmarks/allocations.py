"""The cost of memory profiling in a JSON service: requests per second of CPU, and memory, of ours and of others.

    python benchmarks/allocations.py [--rounds N] [--peers] [--python PYTHON]

Cases: `loaded` (the extension is imported, nothing is started), `sampling` (all but memory), `memory`, and
`tracemalloc` with one frame. `--peers` adds the memory profilers of ddtrace and pyroscope-io at their defaults, each in
an environment made for it.

Each round runs all cases in turn, each in a process of its own, so that a change of the machine hits all. Prints one
JSON line: of each case against the case `nothing` of its round, the median loss in percent and the median of the
largest resident memory added, in MiB. CPU time is that of the whole process, with the profiler's threads; other
processes of the machine are not in it. All have OpenTelemetry's SDK, as a service with spans does, so that its modules
do not count as the profiler's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from installations import Installer, MissingError

SECONDS = 2.0
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


def run_case(python: str, case: str) -> tuple[float, float]:
    """Return the requests per second of CPU and the largest resident memory (MiB) of one process."""
    command = [python, "-c", WORKER, case, str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rate, memory = map(float, done.stdout.split()[-2:])
    return rate, memory


def main() -> int:
    """Measure all cases in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--peers", action="store_true", help="also measure the memory profilers of others")
    parser.add_argument("--python", default=sys.executable, help="the interpreter, which has this package")
    arguments = parser.parse_args()
    pythons, versions = dict.fromkeys(CASES, arguments.python), {}
    for name in PEERS if arguments.peers else ():
        try:
            installed = Installer(arguments.python).install_package(name)
            pythons[name], versions[name] = installed.python, installed.version
        except MissingError as error:
            versions[name] = f"missing: {error}"
    losses: dict[str, list[float]] = {case: [] for case in pythons if case != "nothing"}
    added: dict[str, list[float]] = {case: [] for case in losses}
    for _ in range(arguments.rounds):
        found = {case: run_case(python, case) for case, python in pythons.items()}
        rate, memory = found["nothing"]
        for case, each in losses.items():
            each.append(100 * (1 - found[case][0] / rate))
            added[case].append(found[case][1] - memory)
    result = {
        "measure": "allocations",
        "loss_percent": {case: round(statistics.median(each), 2) for case, each in losses.items()},
        "added_mib": {case: round(statistics.median(each), 1) for case, each in added.items()},
        "rounds": arguments.rounds,
        "peers": versions,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
