"""Memory with 200 threads and an absent collector: with the SDK alone, and with the profiler.

An hour at the default interval is 3,600 snapshots; here they come every 10 ms. Each thread's stack differs from one
snapshot to the next. Both processes have a `TracerProvider` with an OTLP/gRPC exporter that finds no collector either.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from measured_service import exporters_memory_kib
from population import descend
from result import Result, main, median

THREADS = 200
SNAPSHOTS = 3600
INTERVAL_MS = 10
UNREACHABLE_URL = "http://127.0.0.1:9"  # the discard port: connections are refused


def vary_depth(seed: int) -> None:
    """Change the depth of the stack every tenth of a second, until the process ends."""
    never = threading.Event()

    def stay() -> None:
        never.wait(0.1)

    depths = random.Random(seed)  # for variety, not for secrets
    while True:
        descend(depths.randint(10, 60), stay)


def resident_mib(name: str = "VmRSS") -> float:
    """Return a memory figure of this process in MiB; ``VmHWM`` is its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def run_measured_process(profiled: bool, snapshots: int) -> None:
    """Run the measured process."""
    from opentelemetry import trace  # noqa: PLC0415  # only here: the measuring process stays small
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    import splunk_profiler  # noqa: PLC0415

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=UNREACHABLE_URL)))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("benchmark").start_as_current_span("one"):
        pass
    threads = [threading.Thread(target=vary_depth, args=(seed,), daemon=True) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    if profiled:
        config = splunk_profiler.Config(
            enabled=True, call_stack_interval_ms=INTERVAL_MS, max_overhead="off", logs_endpoint=UNREACHABLE_URL
        )
        if not splunk_profiler.start(config):
            raise RuntimeError("the profiler did not start")
    half = snapshots * INTERVAL_MS / 2000
    time.sleep(half)
    middle = resident_mib()
    time.sleep(half)
    figures = {"end": resident_mib(), "middle": middle, "most": resident_mib("VmHWM")}
    print(json.dumps(figures | {"exporter": exporters_memory_kib(os.getpid())[0] / 1024}), flush=True)
    splunk_profiler.stop(0.1)
    os._exit(0)  # a shutdown of the provider would wait for seconds while the SDK retries


def measure(quick: bool) -> Iterator[Result]:
    """Measure both processes, in turns."""
    seen: dict[str, list[dict[str, float]]] = {"sdk": [], "profiled": []}
    for _ in range(1 if quick else 2):
        for mode, found in seen.items():
            command = [sys.executable, __file__, mode, str(40 if quick else SNAPSHOTS)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    end, most = (median(run[key] for run in seen["profiled"]) for key in ("end", "most"))
    base, base_most = (median(run[key] for run in seen["sdk"]) for key in ("end", "most"))
    yield Result(
        "memory above the SDK, 200 threads, dead collector",
        most - base_most,
        "MiB",
        6,
        details={
            "at_the_end": end - base,
            "half_way": median(run["middle"] for run in seen["profiled"]) - base,
            "sdk_alone": base,
            "snapshots": 40 if quick else SNAPSHOTS,
        },
    )
    exporter = median(run["exporter"] for run in seen["profiled"])
    yield Result("memory of the exporter, 200 threads, dead collector", exporter, "MiB", 40)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_measured_process(sys.argv[1] == "profiled", int(sys.argv[2]))
    else:
        main(measure, __doc__)
