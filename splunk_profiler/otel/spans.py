"""OpenTelemetry context → the span that is active in it; and where OpenTelemetry's API keeps these things.

Imported only once the profiler is on. Runs on the sampling worker's thread, the look-ups on the one that starts the
profiler; imports OpenTelemetry's API and the model.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import opentelemetry.context as otel_context
from opentelemetry import trace
from opentelemetry.context.context import Context
from opentelemetry.trace import propagation

from splunk_profiler.model import SpanRef


def span_ref(context: Any) -> SpanRef | None:
    """Ids and flags of the span that is current in `context`; None if there is none or it is not valid.

    Spans that are not sampled count: their flags tell.
    """
    span = trace.get_current_span(context).get_span_context()
    if not span.is_valid:
        return None
    return SpanRef(span.trace_id, span.span_id, int(span.trace_flags) & 0xFF)


def trace_id(context: Any) -> int:
    """The id of the trace of the span that is current in `context`; 0 if there is none."""
    return trace.get_current_span(context).get_span_context().trace_id


def runtime_context() -> Any:
    """The object that holds the current context: OpenTelemetry's ``contextvars`` one unless replaced."""
    return otel_context._RUNTIME_CONTEXT


def context_variable() -> ContextVar[Any] | None:
    """The variable that holds the current context; None where ``OTEL_PYTHON_CONTEXT`` has chosen another way."""
    variable = getattr(runtime_context(), "_current_context", None)
    return variable if isinstance(variable, ContextVar) else None


def context_type() -> type:
    """The type of contexts; OpenTelemetry promises that they never change."""
    return Context


def span_key() -> str:
    """The key under which a context holds its span."""
    return propagation._SPAN_KEY


def tracer_provider() -> Any | None:
    """The provider that the application has set, or None."""
    # Not `get_tracer_provider()`: it may install a provider, which is the application's to do.
    return getattr(trace, "_TRACER_PROVIDER", None)
