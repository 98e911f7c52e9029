"""Sends to a collector with the exporters that applications use, one job for each line that it reads.

Prints one line of JSON for each: what the exporter, or gRPC itself, said to it. They are forked from one process (see
`forked_processes`), by `command_line.run_sender`. Imports nothing of the package.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from forked_processes import fork_processes
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link

SERVICE = "/opentelemetry.proto.collector.{0}.v1.{1}Service/Export"
BODY = (
    '"MainThread" #1 prio=0 os_prio=0 cpu=1.23ms elapsed=8.50s tid=0x1 nid=0x2 running\n   state: X\n\tat a.b(c.py:1)\n'
)


def serve(arguments: list[str]) -> None:
    (address,) = arguments
    channel = grpc.insecure_channel(address)
    for line in sys.stdin:
        job, *arguments = json.loads(line)
        answer = JOBS[job](address, channel, *arguments)
        print(json.dumps(answer), flush=True)
    channel.close()


def everything(address: str, _channel: grpc.Channel) -> Any:
    """Two profile records inside a span with a link, one application log, and metrics."""
    traces, logs = TracerProvider(), LoggerProvider()
    traces.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"http://{address}")))
    logs.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"http://{address}")))
    metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"http://{address}"))])
    metrics.get_meter("m").create_counter("requests").add(1)
    tracer = traces.get_tracer("t")
    with tracer.start_as_current_span("other") as other:
        pass
    with tracer.start_as_current_span("GET /", links=[Link(other.get_span_context())]) as span:
        for _ in range(2):
            logs.get_logger("otel.profiling", "0.1.0").emit(LogRecord(timestamp=time.time_ns(), body=BODY))
    logs.get_logger("application").emit(LogRecord(body="hello"))
    flushed = metrics.force_flush()
    for provider in (traces, logs, metrics):
        provider.shutdown()
    context = span.get_span_context()
    return {"trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}", "metrics": flushed}


def numbered(_address: str, channel: grpc.Channel, number: int, size: int) -> str:
    """One request with one record whose body begins with `number`; the status that it was answered with."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = f"{number} " + "x" * size
    return call(channel, "logs", "Logs", request.SerializeToString())


def raw(_address: str, channel: grpc.Channel, signal: str, service: str, size: int) -> str:
    """Bytes that are no request."""
    return call(channel, signal, service, b"\xff" * size)


def message(_address: str, channel: grpc.Channel, signal: str, service: str, content: str) -> str:
    """One request whose bytes are given in hex."""
    return call(channel, signal, service, bytes.fromhex(content))


def begun(_address: str, channel: grpc.Channel, count: int) -> str:
    """So many requests that are begun and never sent; how one that comes besides is answered."""
    grpc.channel_ready_future(channel).result(30)  # calls that wait for the connection are sent in any order
    export = channel.stream_unary(SERVICE.format("logs", "Logs"))
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    calls = [export.future(nothing()) for _ in range(count)]
    answer = call(channel, "logs", "Logs", b"")
    over.set()
    for each in calls:
        each.cancel()
    return answer


def call(channel: grpc.Channel, signal: str, service: str, message: bytes) -> str:
    try:
        channel.unary_unary(SERVICE.format(signal, service))(message, timeout=30)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


JOBS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (everything, numbered, raw, message, begun)}

if __name__ == "__main__":
    fork_processes(serve)
