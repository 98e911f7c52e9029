"""The profiler started in a measuring process, and what it costs there and in its exporter."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from counting_sink import CountingSink
from measured_service import exporters_cpu_s

import splunk_profiler

P = ParamSpec("P")
T = TypeVar("T")


def run_in_new_process(body: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `body` in a fresh process: settings of the first start hold for the life of a process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(body, *arguments, **named).result()


def start(config: splunk_profiler.Config, sink: CountingSink) -> None:
    """Start the profiler and wait for the first records, after which gRPC is loaded and connected."""
    os.environ.setdefault("OTEL_SERVICE_NAME", "measured")  # else records wait 5 s for a name, and come all at once
    before = sink.totals().records
    if not splunk_profiler.start(config):
        raise RuntimeError("the profiler did not start")
    deadline = time.monotonic() + 30
    while sink.totals().records == before:
        if time.monotonic() > deadline:
            raise RuntimeError("no record arrived")
        time.sleep(0.05)


def whole_cpu_s() -> float:
    """Return the CPU seconds of this process and its exporter so far."""
    return time.process_time() + exporters_cpu_s(os.getpid())
