"""The cost of the profiler while it is off: fresh interpreters with and without it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

from result import Result, main, median, middle_half, significant

COUNT_THREADS = "import os; print(len(os.listdir('/proc/self/task')))"
LOADED = "import sys; print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('grpc', 'opentelemetry')))"
PROGRAMS = {
    "without": "pass",
    "within": "import splunk_profiler; splunk_profiler.start()",
    "imports of a start": "import dataclasses, logging, urllib.parse",
}
WITH_OPENTELEMETRY = """
import time
import opentelemetry.trace
started = time.perf_counter()
import splunk_profiler
splunk_profiler.start()
print(1000 * (time.perf_counter() - started))
"""


def run(program: str) -> str:
    """Run `program` in a fresh interpreter with the profiler's switch unset, and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPLUNK_", "OTEL_"))}
    return subprocess.run(
        [sys.executable, "-c", program], env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def cpu_ms(program: str) -> float:
    """Measure the CPU time of a whole process, which other processes disturb less than wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(program)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(quick: bool) -> Iterator[Result]:
    """Measure CPU time of processes in turns, time in a process with OpenTelemetry, threads and modules."""
    cpu_ms_by_program: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with_opentelemetry_ms: list[float] = []
    for _ in range(3 if quick else 60):
        with_opentelemetry_ms.append(float(run(WITH_OPENTELEMETRY)))
        for name, program in PROGRAMS.items():
            cpu_ms_by_program[name].append(cpu_ms(program))
    without = cpu_ms_by_program["without"]
    added = [within - bare for within, bare in zip(cpu_ms_by_program["within"], without, strict=True)]
    yield Result(
        "import and start while disabled, above a bare interpreter",
        median(added),
        "ms",
        5,
        details={
            "bare_ms": median(without),
            "middle_half": middle_half(added),
            "what_dataclasses_logging_and_urllib_would_add": significant(
                median(cpu_ms_by_program["imports of a start"]) - median(without)
            ),
        },
    )
    yield Result(
        "import and start while disabled, where OpenTelemetry's API is loaded",
        median(with_opentelemetry_ms),
        "ms",
        5,
        details={"middle_half": middle_half(with_opentelemetry_ms)},
    )
    threads = int(run(f"{PROGRAMS['within']}; {COUNT_THREADS}")) - int(run(COUNT_THREADS))
    yield Result("threads made while disabled", threads, "threads", 0)
    loaded = run(f"{PROGRAMS['within']}; {LOADED}").split()
    yield Result("modules of gRPC and OpenTelemetry loaded while disabled", len(loaded), "modules", 0)


if __name__ == "__main__":
    main(measure, __doc__)
