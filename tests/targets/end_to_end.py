"""A service that knows nothing of the profiler: a thread and an asyncio task work in spans, the main thread in none.

Prints ``span NAME TRACE_ID SPAN_ID`` for each span, then ``ready`` and the time; ends when standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

over = threading.Event()
begun = threading.Barrier(3)


def say(span: trace.Span) -> None:
    context = span.get_span_context()
    name = getattr(span, "name", "")
    # In one piece: `print` writes the end of the line by itself, and two threads say something.
    sys.stdout.write(f"span {name} {context.trace_id:032x} {context.span_id:016x}\n")
    sys.stdout.flush()


def compute() -> int:
    return sum(number * number for number in range(2000))


def work_in_a_thread() -> None:
    with trace.get_tracer("test").start_as_current_span("thread") as span:
        say(span)
        begun.wait()
        while not over.is_set():
            compute()


async def work_in_a_task() -> None:
    with trace.get_tracer("test").start_as_current_span("task") as span:
        say(span)
        begun.wait()
        while not over.is_set():
            # Longer than a thread may keep the GIL: before CPython 3.12 it is otherwise seen where it gives it up.
            for _ in range(300):
                compute()
            await asyncio.sleep(0)


def wait_outside() -> None:
    sys.stdin.read()


provider = TracerProvider(resource=Resource.create({"service.name": "end to end", "set.in.code": True}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
threads = [
    threading.Thread(target=work_in_a_thread, name="worker"),
    threading.Thread(target=lambda: asyncio.run(work_in_a_task()), name="loop"),
]
for thread in threads:
    thread.start()
begun.wait()
print("ready", time.time_ns(), flush=True)
wait_outside()
over.set()
for thread in threads:
    thread.join()
provider.shutdown()
