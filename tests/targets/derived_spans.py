"""Spans whose ids and flags are those of pieces of work (`derived_ids.py`). Imports nothing of the package."""

from __future__ import annotations

from _thread import _local  # the real one, also where gevent replaces it: a span starts within one call
from typing import Any

from derived_ids import WorkUnit
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult


class _Next(_local):
    piece: WorkUnit


_NEXT = _Next()
_TRACER = trace.get_tracer(__name__)  # of whichever provider there will be


class _Ids(IdGenerator):
    """Those of the piece that is started."""

    def generate_span_id(self) -> int:
        return _NEXT.piece.span_id

    def generate_trace_id(self) -> int:
        return _NEXT.piece.trace_id


class _SomeTraces(Sampler):
    """Samples as the pieces say."""

    def should_sample(self, *parent_and_trace: Any, **more: Any) -> SamplingResult:
        trace_id: int = parent_and_trace[1] if len(parent_and_trace) > 1 else more["trace_id"]
        sampled = WorkUnit.of_trace_id(trace_id).sampled
        return SamplingResult(Decision.RECORD_AND_SAMPLE if sampled else Decision.DROP)

    def get_description(self) -> str:
        return "SomeTraces"


def begin(piece: WorkUnit) -> trace.Span:
    """A started span for this piece, not made current."""
    _NEXT.piece = piece
    return _TRACER.start_span("")


def set_provider() -> None:
    """Have all spans made so."""
    trace.set_tracer_provider(TracerProvider(sampler=_SomeTraces(), id_generator=_Ids()))
