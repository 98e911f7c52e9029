"""A batch job that starts the profiler itself: for programs whose start is not in your hands.

`start()` does nothing unless SPLUNK_PROFILER_ENABLED is true, so it can stay in the code:

    SPLUNK_PROFILER_ENABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 python examples/batch.py
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import splunk_profiler

tracer = trace.get_tracer("batch")


def count_primes(below: int) -> int:
    """Count the primes below a number, the slow way."""
    with tracer.start_as_current_span("count primes", attributes={"below": below}):
        return sum(all(number % factor for factor in range(2, int(number**0.5) + 1)) for number in range(2, below))


def main(limits: list[int]) -> None:
    """Print the count for each limit."""
    provider = TracerProvider(resource=Resource.create({"service.name": "batch"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    splunk_profiler.start()
    with ThreadPoolExecutor(4) as pool:
        for limit, count in zip(limits, pool.map(count_primes, limits), strict=True):
            print(f"{count} primes below {limit}")
    provider.shutdown()


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [200_000, 300_000, 400_000, 500_000])
