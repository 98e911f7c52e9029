"""A WSGI application whose requests are transactions: each answers with its process and its ids.

The profiler is started when the module is imported; what is exported is said (see `printed_spans`), and ``worker PID``
by each process that was forked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from marked_work import say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from printed_spans import PrintingExporter, describe_span, print_profiler_log

import splunk_profiler

_NUMBERS = count(1)

print_profiler_log()
_PROVIDER = TracerProvider()
_PROVIDER.add_span_processor(BatchSpanProcessor(PrintingExporter("batch"), schedule_delay_millis=100))
trace.set_tracer_provider(_PROVIDER)
assert splunk_profiler.start()
_TRACER = trace.get_tracer(__name__)
os.register_at_fork(after_in_child=lambda: say("worker", os.getpid()))  # after the profiler's own


def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Every request is one span."""
    name = f"{os.getpid()}.{next(_NUMBERS)}"
    with _TRACER.start_as_current_span(name) as span:
        body = json.dumps(describe_span(span, name=name)).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
