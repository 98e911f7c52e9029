"""A WSGI application whose requests stand still inside a span until the test has looked.

Answers with a line of JSON (what has to be seen) and goes on once somebody has written to the pipe that it names.
The profiler is started when the module is imported, in the master process or in a worker, as the server likes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from threading import get_native_id
from typing import Any

from marked_work import wait_until_visible
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

trace.set_tracer_provider(TracerProvider())
assert splunk_profiler.start()
_TRACER = trace.get_tracer(__name__)


def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Every request is served in the same way, once the worker's libraries are loaded."""
    wait_until_visible()
    with _TRACER.start_as_current_span("request") as span:
        start_response("200 OK", [("Content-Type", "application/json")])
        pipe = Path(mkdtemp(dir=os.environ["STANDING_FOLDER"])) / "pipe"
        os.mkfifo(pipe)
        span_id = f"{span.get_span_context().span_id:016x}"
        seen = {"pid": os.getpid(), "tid": get_native_id(), "span_id": span_id, "pipe": str(pipe)}
        yield json.dumps(seen).encode() + b"\n"
        pipe.read_text("ascii")
        yield b"done\n"
