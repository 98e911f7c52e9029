"""Span processors as applications write them."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter


class Watching(SpanProcessor):
    """A processor that keeps its spans instead of exporting them, as applications do."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        self.started.append(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class Filtering(SpanProcessor):
    """Hands on to another processor what is not noise; hides it in an attribute of its own."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._handed_to = inner

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._handed_to.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        if not span.name.startswith("noise"):
            self._handed_to.on_end(span)

    def shutdown(self) -> None:
        self._handed_to.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._handed_to.force_flush(timeout_millis)


class OwnKind(SpanProcessor):
    """An exporting processor that an application has written itself; what it says is its answer."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter
        self.asked: list[int] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.exporter.export([span])

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.asked.append(timeout_millis)
        return False
