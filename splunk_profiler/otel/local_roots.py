"""Local roots: the spans with which traces enter this process. Their names are the endpoints of samples.

`LocalRootTracker` is a span processor of the application's provider. `on_start` and `on_end` run on
the application's threads; except for a local root they only check the parent. `span_ref` and
`endpoint` run on the sampling worker's thread. Never imports the SDK. Takes no lock, so that a fork
cannot leave one locked.

A span has its parent's ids, not its parent. So local roots are stored by trace. A trace usually
enters the process once; then the root of all its spans is known. Where it enters several times,
only the publisher to host profilers knows the root (`LocalRootTracker.lookup_published_root`).
Without it the root is left out, rather than guessed. Ended roots evict ended roots only: a long
request keeps its root to its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from opentelemetry import trace

from splunk_profiler.model import SpanRef
from splunk_profiler.otel import spans
from splunk_profiler.otel.span_processors import SpanListener, is_local_root
from splunk_profiler.system.guard import Guard

_MAX_ENDED = _MAX_SAMPLED = 4096
_MAX_ACTIVE = 8192
_UNKNOWN_ROOT = 0


class LocalRootTracker(SpanListener):
    """The local roots of this process's spans; `lookup_published_root` knows those that are published."""

    def __init__(self, lookup_published_root: Callable[[Any], int | None]) -> None:
        super().__init__()
        self.lookup_published_root = lookup_published_root
        self._guard = Guard("remembering the local roots of spans")
        # Trace id → local root's id, _UNKNOWN_ROOT if there were several; of active traces and of ended ones.
        self._root_by_trace: OrderedDict[int, int] = OrderedDict()
        self._root_by_ended_trace: OrderedDict[int, int] = OrderedDict()
        # Local root's id → its span, or its name once it has ended. Sampled roots are kept apart: their names are
        # needed later, when many other roots have ended.
        self._active_roots: OrderedDict[int, Any] = OrderedDict()
        self._ended_roots: OrderedDict[int, str] = OrderedDict()
        self._sampled_roots: OrderedDict[int, Any] = OrderedDict()

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        """Store the span if it is a local root."""
        try:
            if is_local_root(span):
                self._add_root(span)
        except Exception as error:
            self._guard.note(error)

    def on_end(self, span: Any) -> None:
        """Replace an ended local root by its name."""
        try:
            self._end_root(span)
        except Exception as error:
            self._guard.note(error)

    def _end_root(self, span: Any) -> None:
        if is_local_root(span):
            context = span.context
            self._active_roots.pop(context.span_id, None)
            _put_bounded(self._ended_roots, context.span_id, span.name, _MAX_ENDED)
            root = self._root_by_trace.pop(context.trace_id, None)
            if root is not None:
                _put_bounded(self._root_by_ended_trace, context.trace_id, root, _MAX_ENDED)
            if context.span_id in self._sampled_roots:
                self._sampled_roots[context.span_id] = span.name

    def span_ref(self, context: Any) -> SpanRef | None:
        """Return `spans.span_ref` of `context`, with the local root as far as it is known."""
        ref = spans.span_ref(context)
        if ref is None:
            return None
        root = self._find_root(trace.get_current_span(context), ref)
        if root not in self._sampled_roots:
            name_or_span = self._active_roots.get(root) or self._ended_roots.get(root)
            if name_or_span is not None:
                _put_bounded(self._sampled_roots, root, name_or_span, _MAX_SAMPLED)
        return SpanRef(ref.trace_id, ref.span_id, ref.trace_flags, root, self.endpoint(root))

    def endpoint(self, root: int) -> str:
        """Return the name of a sampled span's local root, the last one if it has ended; empty if not known."""
        return self.current_name(root)[0]

    def current_name(self, root: int) -> tuple[str, bool]:
        """Return `endpoint`, and True if it is final."""
        name_or_span = self._sampled_roots.get(root, "")
        if type(name_or_span) is str:
            return name_or_span, True
        name = getattr(name_or_span, "name", "")
        return name if type(name) is str else "", False

    def _find_root(self, span: Any, ref: SpanRef) -> int:
        if span.get_span_context().is_remote:
            return _UNKNOWN_ROOT
        has_parent_field = isinstance(getattr(span, "parent", span), (trace.SpanContext, type(None)))
        if has_parent_field and is_local_root(span):
            # Add a span that started before the profiler.
            if ref.span_id not in self._active_roots and ref.span_id not in self._ended_roots:
                self._add_root(span)
                if getattr(span, "end_time", None) is not None:
                    self._end_root(span)
            return ref.span_id
        known = self.lookup_published_root(span)
        return known if known is not None else self._lookup_root(ref.trace_id, _UNKNOWN_ROOT)

    def _lookup_root(self, trace_id: int, default: int) -> int:
        found = self._root_by_trace.get(trace_id)
        return found if found is not None else self._root_by_ended_trace.get(trace_id, default)

    def _add_root(self, span: Any) -> None:
        context = span.get_span_context()
        _put_bounded(self._active_roots, context.span_id, span, _MAX_ACTIVE)
        known = self._lookup_root(context.trace_id, context.span_id)
        _put_bounded(
            self._root_by_trace, context.trace_id, known if known == context.span_id else _UNKNOWN_ROOT, _MAX_ACTIVE
        )
        self._root_by_ended_trace.pop(context.trace_id, None)


def _put_bounded(known: OrderedDict[int, Any], key: int, value: Any, max_size: int) -> None:
    known[key] = value
    if len(known) > max_size:
        with suppress(KeyError):  # other threads removed items
            known.popitem(last=False)
