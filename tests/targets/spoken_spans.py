"""An exporter that says what it is given, for targets whose spans a test compares with what it has sent.

Each span is a line ``exported {…}``: process, exporter, name, stack-trace ids. What the profiler logs is ``log {…}``.
Shared by the target programs; imports nothing of the package.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from host_profiler import ids_on
from marked_work import say
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class Saying(SpanExporter):
    """Says each span.

    Args:
        name: of the exporter.
    """

    def __init__(self, name: str = "simple") -> None:
        self.name = name

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Say `spans`."""
        for span in spans:
            ids = ids_on(span)
            say("exported", {"pid": os.getpid(), "exporter": self.name, "name": span.name, "ids": ids})
        return SpanExportResult.SUCCESS


class SayingLog(logging.Handler):
    """Says what the profiler logs."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        say("log", {"pid": os.getpid(), "level": record.levelname, "text": record.getMessage()})


def say_what_is_logged() -> None:
    """From now on, all that the profiler logs from INFO on."""
    logger = logging.getLogger("splunk_profiler")
    logger.setLevel(logging.INFO)
    logger.addHandler(SayingLog())
    logger.propagate = False


def introduced(span: trace.Span, **facts: Any) -> dict[str, Any]:
    """Return the id of this process and the ids of `span`."""
    context = span.get_span_context()
    return {"pid": os.getpid(), "trace_id": context.trace_id, "span_id": context.span_id, **facts}
