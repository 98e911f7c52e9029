"""A service whose spans are exported, and which forks, while it is profiled: ``linked_service.py WHEN``.

The provider and a tracer are there before the profiler (``early``), or come when a line has arrived after it said
``started`` (``late``), before the fork in any case. Each process exports on its own, as under a server that forks its
workers. Prints ``ready``; parent and child work in spans until a line arrives on the parent's standard input, which
then says ``done`` and the status of the child.
"""

from __future__ import annotations

import os
import select
import sys
import time

from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import splunk_profiler


def price_items() -> None:
    total = 0
    for number in range(300_000):
        total += number * number


def serve(tracer: trace.Tracer, until: int) -> None:
    """Requests with a part in it, each a span, until there is something to read in `until`, or its end."""
    while not select.select([until], [], [], 0)[0]:
        with tracer.start_as_current_span("GET /cart"), tracer.start_as_current_span("price"):
            price_items()


def main(when: str) -> None:
    """Serve, in two processes."""
    load_exporter()
    if when == "late":
        assert splunk_profiler.start()
        say("started", os.getpid())
        sys.stdin.readline()
        # The profiler in the child has time for records before the provider, whose hook comes next, knows of the fork.
        os.register_at_fork(after_in_child=lambda: time.sleep(0.3))
    provider = TracerProvider(resource=Resource({"service.name": "linked"}))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("before")
    if when == "early":
        assert splunk_profiler.start()
    if os.environ["SPLUNK_PROFILER_SPAN_RUNTIME_ID_ENABLED"] == "true":
        while "runtime-id" not in provider.resource.attributes:  # a late one is found by a thread that looks for it
            time.sleep(0.001)
    of_child, kept = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(kept)
    # A child cannot use a connection of its parent's, so servers that fork have their exporters made in the workers.
    # With the usual timeout of 10 seconds it drops a batch that a busy machine takes longer for.
    exporter = OTLPSpanExporter(endpoint=os.environ["SPLUNK_PROFILER_LOGS_ENDPOINT"], timeout=60)
    # Nor may its queue be full: every span that a record names is looked for.
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=1 << 20, schedule_delay_millis=100))
    say("ready", os.getpid())
    serve(tracer, 0 if child else of_child)
    provider.force_flush(60_000)  # a shutdown does not wait for a receiver on a busy machine
    provider.shutdown()
    splunk_profiler.stop(10)
    if child == 0:
        os._exit(0)
    os.close(kept)
    say("done", os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(sys.argv[1])
