"""Span → what is published of it: its ids, its flags and its local root.

`IdentityFactory.of` is the slow path: the C extension asks it once for a span that carries no identity yet, on the
thread that made the span current. Spans that start while the extension is on their provider (`otel/providers.py`) get
theirs in C. Loads OpenTelemetry's API only.

Specification: Elastic universal profiling integration, "Thread Local Storage Layout".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from opentelemetry import trace

IDENTITY_ATTRIBUTE = "_splunk_profiler_identity"  # where a span keeps its identity
_MAX_REMEMBERED = 1024

MakeIdentity = Callable[[int, int, int, int], Any]


class IdentityFactory:
    """Makes identities. All methods may be called from any thread; a race costs work, never a wrong answer.

    Args:
        make: (trace id, span id, local root span id, trace flags) → an identity, which has these as attributes.
        previous_root_of: trace id → the local root in which the thread was until now, if that was of this trace.
    """

    def __init__(self, make: MakeIdentity, previous_root_of: Callable[[int], int | None]) -> None:
        self._make = make
        self._previous_root_of = previous_root_of
        self._roots: OrderedDict[tuple[int, int], int] = OrderedDict()  # of spans that cannot be found by their ids
        self._unsampled_roots: OrderedDict[int, int] = OrderedDict()  # trace id → local root of what does not record

    def of(self, span: Any) -> Any | None:
        """The identity of `span`, or None for one that is not published: invalid, or of another process."""
        context = span.get_span_context()
        if not context.is_valid or context.is_remote:
            return None
        root = self._root_of(span, context)
        _remember(self._roots, (context.trace_id, context.span_id), root)
        return self._make(context.trace_id, context.span_id, root, int(context.trace_flags) & 0xFF)

    def _root_of(self, span: Any, context: trace.SpanContext) -> int:
        parent = getattr(span, "parent", None)
        if parent is None and isinstance(span, trace.NonRecordingSpan):
            # It does not know its parent. That is what was current until now, if it is of the same trace. Or else
            # whatever of its trace this process is at work on has the same root, if the trace did not come in twice.
            before = self._previous_root_of(context.trace_id)
            return _remember(self._unsampled_roots, context.trace_id, context.span_id if before is None else before)
        if parent is None or not parent.is_valid or parent.is_remote:
            return context.span_id
        return self._root_of_parent(parent)

    def _root_of_parent(self, parent: trace.SpanContext) -> int:
        known = self._roots.get((parent.trace_id, parent.span_id))
        if known is not None:
            return known
        # The parent is over, of another SDK, or older than the publishing. As far up as anybody can tell, it is the
        # root: to look for the spans above it among all live objects would stop the application for long.
        return self._unsampled_roots.get(parent.trace_id, parent.span_id)


def _remember(known: OrderedDict[Any, int], key: Any, value: int) -> int:
    """What is known of `key`, which is `value` if nothing is."""
    value = known.setdefault(key, value)
    while len(known) > _MAX_REMEMBERED:
        try:
            known.popitem(last=False)
        except KeyError:  # other threads made room
            break
    return value
