"""A provider, a correlator on a real socket and a sender; shared by tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from host_profiler import HostProfiler
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from splunk_profiler._context import SocketReader
from splunk_profiler.host_profilers.correlator import Correlator

WAIT_S = 30


class Exporter(InMemorySpanExporter):
    """An exporter that sets an event when a span arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.exported = threading.Semaphore(0)

    def export(self, spans: Any) -> Any:
        result = super().export(spans)
        for _ in spans:
            self.exported.release()
        return result

    def next(self) -> ReadableSpan:
        assert self.exported.acquire(timeout=WAIT_S)
        return self.get_finished_spans()[-1]


class CorrelatorBench:
    """A provider, a correlator that listens, and a sender."""

    def __init__(
        self, path: Path, *, at_once: bool, resource: dict[str, str], make_reader: Callable[[int], Any] = SocketReader
    ) -> None:
        self.exporter = Exporter()
        self.provider = TracerProvider(shutdown_on_exit=False, resource=Resource(resource))
        self.processor = SimpleSpanProcessor(self.exporter)
        self.provider.add_span_processor(self.processor)
        self.tracer = self.provider.get_tracer("t")
        self.receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.receiving.bind(str(path / "s"))
        self.sending = HostProfiler(path / "s")
        self.lost = threading.Event()
        self.correlator = Correlator(at_once, 100, make_reader)
        self.correlator.set_service_attributes(self.provider.resource.attributes)
        self.correlator.attach(self.provider._active_span_processor)
        self.correlator.listen(self.receiving.fileno(), self.lost.set)

    def register(self, delay_ms: int = 0, host_id: bytes | None = None) -> None:
        host_text = None if host_id is None else host_id.decode()
        self.sending.register(delay_ms, host_text, minor=1 if host_text is None else 2)
        self.correlator.look()

    def report_stack(self, span: Any, stack: bytes = b"s" * 16, count: int = 1) -> None:
        self.sending.report(span, stack, count)
        self.correlator.look()

    def run_span(self, name: str = "root", *stacks: bytes) -> ReadableSpan:
        span = self.tracer.start_span(name)
        for stack in stacks:
            self.report_stack(span, stack)
        span.end()
        return self.exporter.next()

    def end(self) -> None:
        self.correlator.stop(1)
        self.provider.shutdown()
        self.receiving.close()
        self.sending.close()
