"""The active span of an OpenTelemetry context, and the places where OpenTelemetry's API keeps its state.

Imported only once the profiler is on. Runs on the sampler thread; the look-ups run on the
thread that starts the profiler. Imports OpenTelemetry's API and the model.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import opentelemetry.context as otel_context
from opentelemetry import trace
from opentelemetry.context.context import Context
from opentelemetry.trace import propagation

from splunk_profiler.model import SpanRef

CONTEXT_TYPE: type = Context  # of contexts, which OpenTelemetry guarantees to be immutable
SPAN_KEY = propagation._SPAN_KEY  # of the span in a context


def span_ref(context: Any) -> SpanRef | None:
    """Return ids and flags of the current span of `context`, sampled or not; None without a valid span."""
    ids = trace.get_current_span(context).get_span_context()
    return make_ref(ids) if ids.is_valid else None


def make_ref(ids: trace.SpanContext, local_root_id: int = 0, endpoint: str = "") -> SpanRef:
    """Return the reference to the span with these ids."""
    return SpanRef(ids.trace_id, ids.span_id, int(ids.trace_flags) & 0xFF, local_root_id, endpoint)


def trace_id(context: Any) -> int:
    """Return the trace id of the current span of `context`; 0 without one."""
    return trace.get_current_span(context).get_span_context().trace_id


def runtime_context() -> Any:
    """Return OpenTelemetry's holder of the current context: the ``contextvars`` one unless replaced."""
    return otel_context._RUNTIME_CONTEXT


def context_variable() -> ContextVar[Any] | None:
    """Return the variable of the current context; None if ``OTEL_PYTHON_CONTEXT`` selects another holder."""
    variable = getattr(runtime_context(), "_current_context", None)
    return variable if isinstance(variable, ContextVar) else None


def tracer_provider() -> Any | None:
    """Return the application's tracer provider, or None if it has set none."""
    # Not `get_tracer_provider()`: it may install a provider, which only the application may do.
    return getattr(trace, "_TRACER_PROVIDER", None)
