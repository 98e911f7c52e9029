"""An application that knows nothing of the profiler and configures OpenTelemetry itself, when everything is loaded.

Says ``ready {…}`` in a transaction, and ends when a line arrives. What is exported is said (see `spoken_spans`).
"""

from __future__ import annotations

import sys

from marked_work import say
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from spoken_spans import Saying, introduced, say_what_is_logged


def main() -> None:
    say_what_is_logged()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Saying()))
    provider.add_span_processor(BatchSpanProcessor(Saying("batch")))
    with provider.get_tracer("application").start_as_current_span("own") as span:
        say("ready", introduced(span))
        assert sys.stdin.readline()


if __name__ == "__main__":
    main()
