"""A listener's way into the providers of applications, and out again."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from splunk_profiler.listening import SpanListener


class Refusing(TracerProvider):
    """A provider of an application's own, which takes no more span processors."""

    def add_span_processor(self, _span_processor: SpanProcessor) -> None:
        raise ValueError("mine")


class Listening(SpanListener):
    """Counts the spans that it hears of."""

    heard = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        self.heard += 1


def test_a_provider_that_refuses_is_asked_once_and_keeps_nobody_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    refusing, listener = Refusing(shutdown_on_exit=False), Listening()
    for _ in range(3):
        listener.meet(refusing)
    assert len(caplog.records) == 1
    accepting = TracerProvider(shutdown_on_exit=False)
    listener.meet(accepting)
    accepting.get_tracer("tests").start_span("heard")
    listener.leave()
    accepting.get_tracer("tests").start_span("not heard")
    assert listener.heard == 1
