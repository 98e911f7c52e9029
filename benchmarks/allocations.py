"""The cost of memory profiling in a JSON service: requests per second of CPU without it, with it, with `tracemalloc`.

    python benchmarks/allocations.py [--rounds N]

Each round runs all cases in turn, each in a process of its own, so that a change of the machine hits all. Prints one
JSON line: the median loss of each case against the case `nothing` of its round, in percent. CPU time is that of
the whole process, with the profiler's threads; other processes of the machine are not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

SECONDS = 2.0
WORKER = """
import json, sys, time, tracemalloc
case, seconds = sys.argv[1], float(sys.argv[2])
document = {"items": [{"id": i, "name": f"item {i}", "price": i * 1.5, "tags": ["a", "b"]} for i in range(60)]}
text = json.dumps(document)

def serve(seconds):
    until, count, started = time.perf_counter() + seconds, 0, time.process_time()
    while time.perf_counter() < until:
        json.dumps(json.loads(text))
        count += 1
    return count / (time.process_time() - started)

if case != "nothing" and case != "tracemalloc":
    import splunk_profiler
    config = splunk_profiler.Config(
        enabled=True, output="stream:/dev/shm/allocations-benchmark", memory_enabled=case == "memory"
    )
    assert splunk_profiler.start(config)
if case == "tracemalloc":
    tracemalloc.start(1)
serve(0.3)
print(serve(seconds))
"""
CASES = ("nothing", "sampling", "memory", "tracemalloc")


def main() -> int:
    """Measure all cases in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    losses: dict[str, list[float]] = {case: [] for case in CASES[1:]}
    for _ in range(rounds):
        rates = {}
        for case in CASES:
            command = [sys.executable, "-c", WORKER, case, str(SECONDS)]
            rates[case] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for case, found in losses.items():
            found.append(100 * (1 - rates[case] / rates["nothing"]))
    medians = {case: round(statistics.median(found), 2) for case, found in losses.items()}
    print(json.dumps({"measure": "allocations", "loss_percent": medians, "rounds": rounds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
