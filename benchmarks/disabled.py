"""What the profiler costs while it is off: fresh interpreters that import and start it, beside ones that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from result import Result, main, median, middle_half

COUNT_THREADS = "import os; print(len(os.listdir('/proc/self/task')))"
LOADED = "import sys; print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('grpc', 'opentelemetry')))"
PROGRAMS = {
    "without": "pass",
    "within": "import splunk_profiler; splunk_profiler.start()",
    "imports it needs anyway": "import dataclasses, logging, urllib.parse",
}
AMONG_OTHERS = """
import time
import opentelemetry.trace
started = time.perf_counter()
import splunk_profiler
splunk_profiler.start()
print(1000 * (time.perf_counter() - started))
"""


def run(program: str) -> str:
    """What a fresh interpreter prints that runs `program` with the profiler's switch unset."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPLUNK_", "OTEL_"))}
    return subprocess.run(
        [sys.executable, "-c", program], env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def measure(quick: bool) -> Iterator[Result]:
    """Wall time of whole processes, in turns; time in a process that uses OpenTelemetry; then threads and modules."""
    took: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    among: list[float] = []
    for _ in range(3 if quick else 60):
        among.append(float(run(AMONG_OTHERS)))
        for name, program in PROGRAMS.items():
            started = time.perf_counter()
            run(program)
            took[name].append(1000 * (time.perf_counter() - started))
    without = median(took["without"])
    yield Result(
        "import and start while disabled, above a bare interpreter",
        median(took["within"]) - without,
        "ms",
        5,
        details={
            "bare_ms": without,
            "middle_half": [value - without for value in middle_half(took["within"])],
            "of_it_for_dataclasses_logging_urllib": median(took["imports it needs anyway"]) - without,
        },
    )
    yield Result(
        "import and start while disabled, where OpenTelemetry's API is loaded",
        median(among),
        "ms",
        5,
        details={"middle_half": middle_half(among)},
    )
    threads = int(run(f"{PROGRAMS['within']}; {COUNT_THREADS}")) - int(run(COUNT_THREADS))
    yield Result("threads made while disabled", threads, "threads", 0)
    loaded = run(f"{PROGRAMS['within']}; {LOADED}").split()
    yield Result("modules of gRPC and OpenTelemetry loaded while disabled", len(loaded), "modules", 0)


if __name__ == "__main__":
    main(measure, __doc__)
