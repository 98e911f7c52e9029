"""A process that serves a JSON API, or only reads and writes JSON, while a memory profiler is on and off by turns.

    python benchmarks/allocating_service.py api|loop CASE TURNS SECONDS PACKAGES

Prints one line of JSON: CPU time and time per request in each turn, and what memory the profiler added before them.
PACKAGES is a folder, for imports that this environment has not got.

The API is FastAPI on uvicorn, traced with OpenTelemetry. Clients in another process send orders over HTTP, which it
validates, prices and answers. Its spans pass a batch processor and are discarded: sending them would be work in which
Python allocates little. CPU time is that of the whole process, from the end of one request to the end of another.
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
from collections.abc import Callable, Sequence
from pathlib import Path
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
WARM_UP_TURNS = 10
ITEMS = [{"id": i, "name": f"item {i}", "price": i * 1.5, "count": i % 5, "tags": ["a", "b"]} for i in range(40)]
ORDER = json.dumps({"customer": "someone", "items": ITEMS})

Switch = Callable[[], object]


class Progress(NamedTuple):
    """The requests served so far, and CPU time and clock at the end of the last one."""

    served: int
    cpu_s: float
    at_s: float


class Workload(ABC):
    """What is measured; `progress` is how far it has come."""

    progress = Progress(0, 0.0, 0.0)

    @abstractmethod
    def run(self, seconds: float) -> None:
        """Serve for that long, and at least one request."""

    def count_request(self) -> None:
        self.progress = Progress(self.progress.served + 1, time.process_time(), time.perf_counter())

    def measure(self, seconds: float) -> tuple[float, float]:
        """Serve; return the CPU time and the time of a request."""
        before = self.progress
        self.run(seconds)
        served, cpu_s, passed_s = (now - then for now, then in zip(self.progress, before, strict=True))
        return cpu_s / served, passed_s / served


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

    config = splunk_profiler.Config(enabled=True, output="stream:/dev/shm/allocations-benchmark", memory_enabled=memory)

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


def main(workload: Workload, case: str, turns: int, seconds: float) -> None:
    """Take pairs of turns; what comes first alternates."""
    workload.run(WARM_UP_TURNS * seconds)
    before_mib = peak_mib()
    on, off = CASES[case]()
    on()
    workload.run(WARM_UP_TURNS * seconds)
    added_mib, state = peak_mib() - before_mib, on
    found: dict[Switch, list[tuple[float, float]]] = {on: [], off: []}
    for turn in range(turns):
        for switch in (off, on) if turn % 2 else (on, off):
            if switch is not state:
                switch()
                state = switch
            workload.run(seconds / 5)
            found[switch].append(workload.measure(seconds))
    print(json.dumps({"turns_on": found[on], "turns_off": found[off], "added_mib": added_mib}))


if __name__ == "__main__":
    sys.path.append(sys.argv[5])
    main(JsonApi() if sys.argv[1] == "api" else JsonLoop(), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
