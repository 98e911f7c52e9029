"""A service whose captures go to an exporter process: ``exported_service.py [frozen]``.

Works in spans until a line ``stop``, after ``ready``. A line ``modules`` is answered with the modules of gRPC that
are loaded and the names of the profiler's threads, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler


def price_items() -> int:
    return sum(number * number for number in range(2000))


def serve(over: threading.Event) -> None:
    tracer = trace.get_tracer("service")
    while not over.is_set():
        with tracer.start_as_current_span("GET /cart"):
            price_items()


def main() -> None:
    if "frozen" in sys.argv:
        sys.frozen = True  # type: ignore[attr-defined]  # as PyInstaller sets it
    trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "exported"})))
    assert splunk_profiler.start()
    over = threading.Event()
    serving = threading.Thread(target=serve, args=(over,), name="serving")
    serving.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        if line.strip() == "modules":
            grpc = [name for name in sys.modules if name.partition(".")[0] == "grpc"]
            threads = sorted(one.name for one in threading.enumerate() if one.name.startswith("splunk-profiler-"))
            print("modules", json.dumps({"grpc": grpc, "threads": threads}), flush=True)
    over.set()
    serving.join()
    splunk_profiler.stop(30)


main()
