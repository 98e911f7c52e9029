"""Fills a cache in a span with labels, and has its objects profiled: a kind of event that is added in one place.

Prints, once the profiler has ended, the line ``ledger {…}``: the span, and how many bytes the objects had.
"""

from __future__ import annotations

import time

from made_up_events import Objects, registered
from marked_work import load_exporter, say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler
from splunk_profiler.capture import events

OBJECTS = Objects()


def fill_cache() -> None:
    for _ in range(3):
        OBJECTS.make("page", 10, 4096)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


def main() -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    own = [each for each in events.REGISTERED_SOURCES if each.kind.name != "allocation"]
    events.REGISTERED_SOURCES = (*own, registered(OBJECTS))
    assert splunk_profiler.start()
    with (
        trace.get_tracer("made up").start_as_current_span("GET /pages") as span,
        splunk_profiler.labels(tenant="acme"),
    ):
        compute(0.1)
        fill_cache()
    splunk_profiler.stop(10)
    say("ledger", {"span": f"{span.get_span_context().span_id:016x}", "objects": 30, "bytes": 30 * 4096})


if __name__ == "__main__":
    main()
