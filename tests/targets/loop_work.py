"""Shared parts of the services of the correlation loop: tracing as services set it up, and work of a given length.

Knows nothing of the profiler, but has what that logs printed with the time, in nanoseconds since the epoch, and the
process id after each line. Says "set up" in each process that is. Used on any thread of the target. Imports nothing of
the package.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

_PAUSE_S = 0.001


class _Stamped(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.getMessage()} @ {time.time_ns()} {record.process}"


def configure() -> TracerProvider:
    """Send the spans where the OTEL_* variables say, and let the profiler be heard."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Stamped())
    log = logging.getLogger("splunk_profiler")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    provider = TracerProvider(resource=Resource.create({"service.name": "loop"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=100))
    trace.set_tracer_provider(provider)
    os.write(1, b"set up\n")
    return provider


def ids() -> dict[str, Any]:
    """The transaction: called where that is the current span."""
    context = trace.get_current_span().get_span_context()
    return {
        "pid": os.getpid(),
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "sampled": context.trace_flags.sampled,
    }


def _compute() -> None:
    total = 0
    for number in range(5_000):  # some tenths of a millisecond
        total += number * number


def work(milliseconds: int) -> None:
    """Compute for so long, with pauses, in a span below the current one."""
    until = time.perf_counter() + milliseconds / 1000
    with trace.get_tracer(__name__).start_as_current_span("work"):
        while time.perf_counter() < until:
            _compute()
            time.sleep(_PAUSE_S)


async def work_in_turns(milliseconds: int) -> None:
    """Likewise, in turns with the other tasks of the thread."""
    until = time.perf_counter() + milliseconds / 1000
    with trace.get_tracer(__name__).start_as_current_span("work"):
        while time.perf_counter() < until:
            _compute()
            await asyncio.sleep(_PAUSE_S)
