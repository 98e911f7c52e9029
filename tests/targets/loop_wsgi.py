"""A WSGI service that traces by hand, for servers that fork; the path says how long a request takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from loop_work import configure, ids, work
from opentelemetry import trace
from opentelemetry.propagate import extract

configure()
_TRACER = trace.get_tracer(__name__)


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """``/thread/MS``, and ``/health``, which is not traced."""
    word, _, milliseconds = environ["PATH_INFO"].strip("/").partition("/")
    answer = {"status": "ok"} if word == "health" else _serve(environ, int(milliseconds))
    body = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def _serve(environ: dict[str, Any], milliseconds: int) -> dict[str, Any]:
    caller = extract({"traceparent": environ.get("HTTP_TRACEPARENT", "")})
    with _TRACER.start_as_current_span("request", context=caller, kind=trace.SpanKind.SERVER):
        work(milliseconds)
        return ids()
