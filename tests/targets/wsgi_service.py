"""A WSGI application as gunicorn and uWSGI serve it: each request works in a span and says who has served it.

The profiler is started when the module is imported, in the master process or in a worker, as the server likes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from marked_work import LEDGER, wait, work
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

trace.set_tracer_provider(TracerProvider(resource=Resource.create({"set.in.code": "yes"})))
splunk_profiler.start()


def serve(number: int) -> dict[str, Any]:
    """Works in a span; tells process and span."""
    with LEDGER.span(number) as span:
        for _ in range(10):
            work(number)
            wait(number)
        context = span.get_span_context()
        ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        return {"pid": os.getpid(), "sampled": context.trace_flags.sampled, **ids}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The request's path is the number of the span."""
    body = json.dumps(serve(int(environ["PATH_INFO"].strip("/")))).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
