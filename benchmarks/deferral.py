"""The cost of deferring transactions for host profilers: per span, at a high rate, and in memory.

Spans go through the SDK's own batch processor to an exporter that counts them. Compared are, in turns: without
correlation, with one that nobody has registered with yet (`auto`), and with one that holds transactions back.
"""

from __future__ import annotations

import socket
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags
from result import Result, main, median, middle_half

from splunk_profiler._context import SocketReader
from splunk_profiler.host_profilers.correlator import Correlator

DELAY_MS = 50  # with the margin, 3,500 transactions at the rate below: a buffer of 8,096 holds them
BUFFER = 8096
SPANS_PER_SECOND = 50_000
BATCH_SIZE = 500


class CountingExporter(SpanExporter):
    """An exporter that counts spans and the stack-trace ids on them."""

    def __init__(self) -> None:
        self.spans = 0
        self.ids = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += len(spans)
        self.ids += sum(len(span.attributes.get("elastic.profiler_stack_trace_ids", ())) for span in spans)  # type: ignore[union-attr,arg-type,misc]
        return SpanExportResult.SUCCESS


class Service:
    """A provider whose batch processor has room for all spans of a measure."""

    def __init__(self, queue_size: int) -> None:
        self.exporter = CountingExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, resource=Resource({"service.name": "benchmark"}))
        self.batch = BatchSpanProcessor(self.exporter, max_queue_size=max(queue_size, 512), schedule_delay_millis=100)
        self.provider.add_span_processor(self.batch)
        self.tracer = self.provider.get_tracer("benchmark")

    @contextmanager
    def correlated(self, *, registered: bool) -> Iterator[tuple[Correlator, socket.socket]]:
        """Run a correlator that listens, and yield a sender to it."""
        with tempfile.TemporaryDirectory() as directory:
            receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            receiving.bind(f"{directory}/s")
            sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            sending.connect(f"{directory}/s")
            correlator = Correlator(registered, BUFFER, SocketReader)
            correlator.attach(self.provider._active_span_processor)
            correlator.listen(receiving.fileno(), lambda: None)
            if registered:
                sending.send(struct.pack("=HHI", 2, 1, DELAY_MS))
            try:
                yield correlator, sending
            finally:
                correlator.stop(10)
                receiving.close()
                sending.close()
                self.provider.force_flush()


def measure_span_cost(service: Service, spans: int) -> tuple[float, float]:
    """Measure the CPU time of a span in ns: of its thread, and of the process until it is exported."""
    before, whole = time.thread_time_ns(), time.process_time_ns()
    for _ in range(spans):
        service.tracer.start_span("root", attributes={"http.route": "/checkout"}).end()
    own = time.thread_time_ns() - before
    service.provider.force_flush()
    return own / spans, (time.process_time_ns() - whole) / spans


def measure_per_span(quick: bool) -> Iterator[Result]:
    """Measure a span with correlation off, without a registered profiler, and on."""
    spans, rounds = (200, 2) if quick else (2000, 25)
    service = Service(100_000)
    own: dict[str, list[float]] = {"stock": [], "auto": [], "on": []}
    whole: dict[str, list[float]] = {"stock": [], "auto": [], "on": []}
    for _ in range(rounds):
        for name in ("stock", "auto", "on", "stock"):
            if name == "stock":
                costs = measure_span_cost(service, spans)
            else:
                with service.correlated(registered=name == "on"):
                    costs = measure_span_cost(service, spans)
            own[name].append(costs[0])
            whole[name].append(costs[1])
    for name, what in (("auto", "no profiler has registered"), ("on", "transactions held back")):
        yield Result(
            f"a transaction through the batch processor, {what} / stock: CPU of its thread",
            median(own[name], 4) / median(own["stock"], 4),
            "times",
            details={
                "ns": median(own[name]),
                "stock_ns": median(own["stock"]),
                "middle_half_ns": middle_half(own[name]),
                "stock_middle_half_ns": middle_half(own["stock"]),
                "process_ns": median(whole[name]),
                "stock_process_ns": median(whole["stock"]),
            },
        )
    service.provider.shutdown()


def make_ended_span(number: int) -> ReadableSpan:
    """Make an ended transaction like a web service's."""
    context = SpanContext(number + 1, number + 1, is_remote=False, trace_flags=TraceFlags(1))
    attributes: dict[str, Any] = {"http.route": "/checkout", "http.request.method": "GET", "url.path": "/checkout"}
    return ReadableSpan("GET /checkout", context=context, attributes=attributes, start_time=1, end_time=2)


def measure_at_rate(quick: bool) -> Iterator[Result]:
    """Measure the target rate of ended transactions, each with one sample of a profiler."""
    total = SPANS_PER_SECOND // 50 if quick else SPANS_PER_SECOND * 5
    spans = [make_ended_span(number) for number in range(total)]
    service = Service(total)
    with service.correlated(registered=True) as (correlator, _):
        before = time.process_time_ns()
        started = time.perf_counter()
        for first in range(0, total, BATCH_SIZE):
            for span in spans[first : first + BATCH_SIZE]:
                service.batch.on_end(span)
            time.sleep(max(started + first / SPANS_PER_SECOND - time.perf_counter(), 0))
        took = time.perf_counter() - started
        service.provider.force_flush()
        refused = correlator.counts().refused
        cpu = (time.process_time_ns() - before) / total
    yield Result(
        f"transactions exported, of those that ended at {SPANS_PER_SECOND} a second",
        service.exporter.spans / total,
        "times",
        1.0,
        at_least=True,
        details={"spans": total, "sent_at_once": refused, "per_second": round(total / took), "process_ns": cpu},
    )
    service.provider.shutdown()


def measure_full_buffer(quick: bool) -> Iterator[Result]:
    """Measure the memory of a full buffer: the correlation's part, and the spans that it keeps."""
    size = 100 if quick else BUFFER
    service = Service(size)
    with service.correlated(registered=True):
        service.provider.force_flush()
        tracemalloc.start()
        spans = [make_ended_span(number) for number in range(size)]
        kept, _ = tracemalloc.get_traced_memory()
        for span in spans:
            service.batch.on_end(span)
        added = tracemalloc.get_traced_memory()[0] - kept
        tracemalloc.stop()
    yield Result(
        f"memory of a full buffer ({size} transactions)",
        added / 1024,
        "KiB",
        details={"per_transaction_bytes": round(added / size), "spans_kib": round(kept / 1024)},
    )
    service.provider.shutdown()


def measure(quick: bool) -> Iterator[Result]:
    """Measure all cases."""
    yield from measure_per_span(quick)
    yield from measure_at_rate(quick)
    yield from measure_full_buffer(quick)


if __name__ == "__main__":
    main(measure, __doc__)
