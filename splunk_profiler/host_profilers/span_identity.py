"""Identities of spans: the ids, flags and local root that are published of them.

`IdentityFactory.of` is the slow path. The C extension calls it once for a span without an identity,
on the thread that made the span current. Spans get theirs in C if they start while the extension is
on their provider (`otel/span_processors.py`). Loads OpenTelemetry's API only.

Specification: Elastic universal profiling integration, "Thread Local Storage Layout".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from opentelemetry import trace

IDENTITY_ATTRIBUTE = "_splunk_profiler_identity"  # of a span
_MAX_ROOTS = 1024


class IdentityFactory:
    """A maker of identities. Methods may run on any thread; a race costs work, never a wrong answer.

    Args:
        make: (trace id, span id, local root span id, trace flags) → identity.
        known_root_of: trace id → local root of the thread until now, or of the trace in this process, if known.
    """

    def __init__(self, make: Callable[[int, int, int, int], Any], known_root_of: Callable[[int], int | None]) -> None:
        self._make = make
        self._known_root_of = known_root_of
        self._roots: OrderedDict[tuple[int, int], int] = OrderedDict()  # (trace id, span id) → local root

    def of(self, span: Any) -> Any | None:
        """Return the identity of `span`; None if it is invalid or of another process."""
        context = span.get_span_context()
        if not context.is_valid or context.is_remote:
            return None
        root = _set_default(self._roots, (context.trace_id, context.span_id), self._root_of(span, context))
        return self._make(context.trace_id, context.span_id, root, int(context.trace_flags) & 0xFF)

    def _root_of(self, span: Any, context: trace.SpanContext) -> int:
        parent: trace.SpanContext | None = getattr(span, "parent", None)
        if parent is None and isinstance(span, trace.NonRecordingSpan):  # its parent is unknown
            return self._known_root_of(context.trace_id) or context.span_id
        if parent is None or not parent.is_valid or parent.is_remote:
            return context.span_id
        # Of a parent without an entry take the root of the span that was current until now, if it is of the same trace.
        # Else take the trace's root in this process, which is right unless the trace came in twice. Where none is known
        # the parent has ended, or is older than the publishing. Take it for the root: a search for the spans above it
        # among all live objects would stop the application for long.
        known = self._roots.get((parent.trace_id, parent.span_id)) or self._known_root_of(parent.trace_id)
        if known is None or known == context.span_id:  # a span below may have taken this one for the root
            return parent.span_id
        return known


def _set_default(known: OrderedDict[Any, int], key: Any, value: int) -> int:
    """Return the value of `key`, set to `value` if there was none; drop the oldest beyond the limit."""
    value = known.setdefault(key, value)
    while len(known) > _MAX_ROOTS:
        try:
            known.popitem(last=False)
        except KeyError:  # other threads made room
            break
    return value
