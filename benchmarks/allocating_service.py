"""A process that serves a JSON API, or only reads and writes JSON, while a memory profiler is on and off by turns.

    python benchmarks/allocating_service.py api|loop CASE TURNS SECONDS PACKAGES ENDPOINT

Prints one line of JSON, an `allocations.Seen`. PACKAGES is a folder, for imports that this environment has not got.
Ours sends its profiles to ENDPOINT, by its exporter process.

The API is FastAPI on uvicorn, traced with OpenTelemetry. Clients in another process send orders over HTTP, which it
validates, prices and answers. Its spans pass a batch processor and are discarded: sending them would be work in which
Python allocates little.

Turns show what the profiler costs the thread that serves. They are short, because the machine changes within seconds.
What the profiler's own threads do comes seldom, and is measured in a stretch before the turns. Where other processes
keep the machine busy its share is too large: these threads wake up by the clock, while fewer requests are served. All
is measured from the end of one request to that of another.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import uvicorn
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from pydantic import BaseModel

CLIENTS = 2  # so that one's next order waits while the other's is served
REQUEST_TIMEOUT_S = 30
STRETCH_TURNS = 50
MAX_REQUESTS = 1 << 16
ITEMS = [{"id": i, "name": f"item {i}", "price": i * 1.5, "count": i % 5, "tags": ["a", "b"]} for i in range(40)]
ORDER = json.dumps({"customer": "someone", "items": ITEMS})

Switch = Callable[[], object]


class Progress(NamedTuple):
    """The requests served, and at the end of the last one: clock, CPU time of the process and of the serving thread."""

    served: int
    at_s: float
    process_s: float
    serving_s: float


class Workload(ABC):
    """Work that is done with a profiler and without one.

    Attributes:
        progress: how far it has come.
    """

    def __init__(self) -> None:
        self.progress = Progress(0, 0.0, 0.0, 0.0)
        # Of the last requests; all of it is there from the start, or it would count as memory of what is measured.
        self._request_cpu_s = array("d", bytes(8 * MAX_REQUESTS))
        self._measured_since = 0

    @abstractmethod
    def run(self, seconds: float) -> None:
        """Serve for that long, and at least one request."""

    def count_request(self) -> None:
        last = self.progress
        self.progress = Progress(last.served + 1, time.perf_counter(), time.process_time(), time.thread_time())
        self._request_cpu_s[last.served % MAX_REQUESTS] = self.progress.serving_s - last.serving_s

    def measure(self, seconds: float) -> Progress:
        """Serve; return how far it came."""
        served, *times = self.progress
        self._measured_since = served
        self.run(seconds)
        at_s, process_s, serving_s = (now - then for now, then in zip(self.progress[1:], times, strict=True))
        return Progress(self.progress.served - served, at_s, process_s, serving_s)

    def request_cpu_s(self) -> list[float]:
        """Return the CPU time of the serving thread for each request since the last `measure` began."""
        count = min(self.progress.served - self._measured_since, MAX_REQUESTS)
        return [self._request_cpu_s[(self._measured_since + number) % MAX_REQUESTS] for number in range(count)]


class JsonLoop(Workload):
    """The worst case: nothing but JSON."""

    def run(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while self.progress.at_s < until:
            json.dumps(json.loads(ORDER))
            self.count_request()


class Item(BaseModel):
    id: int
    name: str
    price: float
    count: int
    tags: list[str]


class Order(BaseModel):
    customer: str
    items: list[Item]


class Line(BaseModel):
    name: str
    cents: int
    labels: dict[str, str]


class Invoice(BaseModel):
    customer: str
    lines: list[Line]
    cents: int


class DiscardingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


class JsonApi(Workload):
    """A service of one thread, and its clients; both end with the process."""

    def __init__(self) -> None:
        super().__init__()
        self._has_served = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        for _ in range(CLIENTS):
            multiprocessing.get_context("fork").Process(target=send_orders, args=(listener,), daemon=True).start()
        server = uvicorn.Server(uvicorn.Config(self._make_app(), log_level="warning"))
        threading.Thread(target=server.run, args=([listener],), daemon=True).start()

    def run(self, seconds: float) -> None:
        time.sleep(seconds)
        self._has_served.clear()
        if not self._has_served.wait(REQUEST_TIMEOUT_S):
            raise TimeoutError("the service serves nothing")

    def _make_app(self) -> FastAPI:
        provider = TracerProvider(resource=Resource({"service.name": "benchmark"}))
        provider.add_span_processor(BatchSpanProcessor(DiscardingExporter()))
        trace.set_tracer_provider(provider)
        app = FastAPI()
        app.post("/orders")(self._price)
        FastAPIInstrumentor.instrument_app(app, exclude_spans=["receive", "send"])
        return app

    async def _price(self, order: Order) -> Invoice:
        lines = [
            Line(
                name=item.name.title(),
                cents=round(100 * item.price) * item.count,
                labels={tag: f"{tag}-{item.id}" for tag in item.tags},
            )
            for item in sorted(order.items, key=lambda item: item.price, reverse=True)
        ]
        self.count_request()
        self._has_served.set()
        return Invoice(customer=order.customer, lines=lines, cents=sum(line.cents for line in lines))


def send_orders(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    listener.close()  # so that the connection fails when the service has ended
    connection = http.client.HTTPConnection(host, port)
    while True:
        connection.request("POST", "/orders", ORDER, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(answer)


def switch_ours(*, memory: bool) -> tuple[Switch, Switch]:
    import splunk_profiler  # noqa: PLC0415

    config = splunk_profiler.Config(
        enabled=True, data_format="pprof-gzip-base64", logs_endpoint=sys.argv[6], memory_enabled=memory
    )

    def start() -> None:
        if not splunk_profiler.start(config):
            raise RuntimeError("the profiler did not start")

    return start, splunk_profiler.stop


def switch_tracemalloc() -> tuple[Switch, Switch]:
    import tracemalloc  # noqa: PLC0415

    return tracemalloc.start, tracemalloc.stop


def switch_ddtrace() -> tuple[Switch, Switch]:
    from ddtrace.internal.datadog.profiling import ddup  # type: ignore[import-not-found]  # noqa: PLC0415
    from ddtrace.profiling.collector.memalloc import (  # type: ignore[import-not-found]  # noqa: PLC0415
        MemoryCollector,
    )

    ddup.config(service="benchmark")
    ddup.start()
    collector = MemoryCollector()
    return collector.start, collector.stop


def switch_pyroscope() -> tuple[Switch, Switch]:
    import pyroscope  # type: ignore[import-not-found]  # noqa: PLC0415

    def start() -> None:
        pyroscope.configure(
            application_name="benchmark", server_address="http://127.0.0.1:9", mem_enabled=True, cpu_enabled=False
        )

    return start, pyroscope.shutdown


CASES: dict[str, Callable[[], tuple[Switch, Switch]]] = {
    "sampling": lambda: switch_ours(memory=False),
    "memory": lambda: switch_ours(memory=True),
    "tracemalloc": switch_tracemalloc,
    "ddtrace": switch_ddtrace,
    "pyroscope-io": switch_pyroscope,
}


def peak_mib() -> float:
    """Return the largest resident memory so far."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def measure_other_threads(workload: Workload, seconds: float) -> float:
    """Return the CPU time of the threads that do not serve, as a share of that of the one that does."""
    workload.run(STRETCH_TURNS * seconds)
    seen = workload.measure(STRETCH_TURNS * seconds)
    return seen.process_s / seen.serving_s - 1


def measure_case(workload: Workload, case: str, turns: int, seconds: float) -> dict[str, object]:
    """Measure a stretch without the profiler and one with it, then pairs of turns; what comes first alternates."""
    others_without, mib_without = measure_other_threads(workload, seconds), peak_mib()
    on, off = CASES[case]()
    on()
    others_with, mib_with, state = measure_other_threads(workload, seconds), peak_mib(), on
    found: dict[Switch, list[tuple[float, float]]] = {on: [], off: []}
    requests: dict[Switch, list[float]] = {on: [], off: []}
    for turn in range(turns):
        for switch in (off, on) if turn % 2 else (on, off):
            if switch is not state:
                switch()
                state = switch
            workload.run(seconds / 5)
            seen = workload.measure(seconds)
            found[switch].append((seen.at_s / seen.served, seen.serving_s / seen.served))
            requests[switch] += workload.request_cpu_s()
    return {
        "turns_on": found[on],
        "turns_off": found[off],
        "least_on": quantiles(requests[on], n=10)[0],
        "least_off": quantiles(requests[off], n=10)[0],
        "other_threads": others_with - others_without,
        "added_mib": mib_with - mib_without,
    }


if __name__ == "__main__":
    sys.path.append(sys.argv[5])
    measured = JsonApi() if sys.argv[1] == "api" else JsonLoop()
    print(json.dumps(measure_case(measured, sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
