"""An exporter that prints its spans, for targets whose spans a test compares with what it has sent.

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


class PrintingExporter(SpanExporter):
    """Prints each span.

    Args:
        name: of the exporter.
    """

    def __init__(self, name: str = "simple") -> None:
        self.name = name

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Print `spans`."""
        for span in spans:
            ids = ids_on(span)
            say("exported", {"pid": os.getpid(), "exporter": self.name, "name": span.name, "ids": ids})
        return SpanExportResult.SUCCESS


class PrintingHandler(logging.Handler):
    """Prints what the profiler logs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        say("log", {"pid": os.getpid(), "level": record.levelname, "text": record.getMessage()})


def print_profiler_log() -> None:
    """Print what the profiler logs at INFO and above."""
    logger = logging.getLogger("splunk_profiler")
    logger.setLevel(logging.INFO)
    logger.addHandler(PrintingHandler())
    logger.propagate = False


def describe_span(span: trace.Span, **facts: Any) -> dict[str, Any]:
    """Return the id of this process and the ids of `span`."""
    context = span.get_span_context()
    return {"pid": os.getpid(), "trace_id": context.trace_id, "span_id": context.span_id, **facts}
