"""The cost of a start: what `start` takes of the service, and processor time until the first record has arrived.

Fresh processes, whose OpenTelemetry SDK is loaded and that do nothing else; at the default interval.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from counting_sink import CountingSink
from result import Result, main, median, middle_half

MAX_WAIT_S = 30
SERVICE = """
import json, os, sys, time
import opentelemetry.sdk.trace
from measured_service import exporters_cpu_s
before = time.monotonic(), time.process_time()
import splunk_profiler
splunk_profiler.start(splunk_profiler.Config(enabled=True, logs_endpoint=sys.argv[1]))
after = time.monotonic(), time.process_time()
print(json.dumps({"started_s": before[0], "wall_s": after[0] - before[0], "cpu_s": after[1] - before[1]}), flush=True)
sys.stdin.readline()
print(json.dumps({"service_s": time.process_time() - before[1], "exporter_s": exporters_cpu_s(os.getpid())}))
"""


class Start(NamedTuple):
    """The figures of one start, in seconds: `start` itself, all until the first record, and that record's delay."""

    wall_s: float
    cpu_s: float
    service_s: float
    exporter_s: float
    first_record_s: float


def measure_start() -> Start:
    """Start the profiler in a fresh process and wait for its first record."""
    command = [sys.executable, "-c", SERVICE]
    with (
        CountingSink() as sink,
        subprocess.Popen(
            [*command, sink.url], cwd=sys.path[0], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as service,
    ):
        assert service.stdout is not None
        assert service.stdin is not None
        start = json.loads(service.stdout.readline())
        deadline_s = time.monotonic() + MAX_WAIT_S
        while (first_s := sink.totals().first_s) is None:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"no record has arrived within {MAX_WAIT_S} s")
            time.sleep(0.02)
        service.stdin.write("\n")
        service.stdin.flush()
        seen = json.loads(service.stdout.readline())
    return Start(start["wall_s"], start["cpu_s"], seen["service_s"], seen["exporter_s"], first_s - start["started_s"])


def measure(quick: bool) -> Iterator[Result]:
    """Measure starts one after the other."""
    starts = [measure_start() for _ in range(1 if quick else 20)]
    wall_ms = [1000 * start.wall_s for start in starts]
    yield Result(
        "import and start where OpenTelemetry's SDK is loaded",
        median(wall_ms),
        "ms",
        details={"middle_half": middle_half(wall_ms), "cpu_ms": median(1000 * start.cpu_s for start in starts)},
    )
    yield Result(
        "CPU of the service from a start until the first record has arrived",
        median(1000 * start.service_s for start in starts),
        "ms",
        details={
            "exporter_ms": median(1000 * start.exporter_s for start in starts),
            "first_record_after_s": median(start.first_record_s for start in starts),
        },
    )


if __name__ == "__main__":
    main(measure, __doc__)
