"""An application that knows nothing of the profiler and configures OpenTelemetry itself, when everything is loaded.

Says ``ready {…}`` in a transaction, and ends when a line arrives. What is exported is said (see `printed_spans`).
"""

from __future__ import annotations

import sys

from marked_work import say
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from printed_spans import PrintingExporter, describe_span, print_profiler_log


def main() -> None:
    print_profiler_log()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(PrintingExporter()))
    provider.add_span_processor(BatchSpanProcessor(PrintingExporter("batch")))
    with provider.get_tracer("application").start_as_current_span("own") as span:
        say("ready", describe_span(span))
        assert sys.stdin.readline()


if __name__ == "__main__":
    main()
