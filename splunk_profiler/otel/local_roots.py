"""Local roots: the span with which a trace came into this process, and its name, the endpoint of samples.

`LocalRootTracker` is a span processor of the application's provider. Its `on_start` and `on_end` run on the
application's threads and do nothing but look at the parent, except for a local root. `span_ref` and `endpoint` run on
the sampling worker's thread. Never imports the SDK. Takes no lock, so that a fork cannot leave one locked.

A span knows its parent's ids, not its parent. So the local roots are remembered by trace: where a trace has come into
the process once, which is the rule, the root of all its spans is known. Where it has come in several times, only the
publisher to host profilers knows it (`LocalRootTracker.lookup_published_root`); without that the root is left out,
rather than guessed. Roots that have ended make room for each other, and only for each other: a long request is known to
its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from opentelemetry import trace

from splunk_profiler.model import SpanRef
from splunk_profiler.otel import spans
from splunk_profiler.otel.span_listener import SpanListener, is_local_root
from splunk_profiler.system.guard import Guard

_MAX_ENDED = _MAX_SAMPLED = 4096
_MAX_ACTIVE = 8192
_UNKNOWN_ROOT = 0


class LocalRootTracker(SpanListener):
    """The local roots of this process's spans.

    Args:
        lookup_published_root: a span's local root, where somebody else has kept it; else None.
    """

    def __init__(self, lookup_published_root: Callable[[Any], int | None]) -> None:
        super().__init__()
        self.lookup_published_root = lookup_published_root
        self._guard = Guard("remembering the local roots of spans")
        # Trace id → the local root's id; _UNKNOWN if there were several. Of traces whose root lives, and of others.
        self._root_by_trace: OrderedDict[int, int] = OrderedDict()
        self._root_by_ended_trace: OrderedDict[int, int] = OrderedDict()
        # A local root's id → its span, and its name once it has ended. Those that were sampled are kept beside the
        # others: their names are asked for when many others have come and gone.
        self._active_roots: OrderedDict[int, Any] = OrderedDict()
        self._ended_roots: OrderedDict[int, str] = OrderedDict()
        self._sampled_roots: OrderedDict[int, Any] = OrderedDict()

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        """Remember a local root."""
        try:
            if is_local_root(span):
                self._add_root(span)
        except Exception as error:
            self._guard.note(error)

    def on_end(self, span: Any) -> None:
        """Keep of a local root no more than its name."""
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
        """As `spans.span_ref`, with the local root as far as it is known."""
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
        """The name of a sampled span's local root as of now, or the one it had at its end; empty if it is not known."""
        name_or_span = self._sampled_roots.get(root, "")
        if type(name_or_span) is str:
            return name_or_span
        name = getattr(name_or_span, "name", "")
        return name if type(name) is str else ""

    def _find_root(self, span: Any, ref: SpanRef) -> int:
        if span.get_span_context().is_remote:
            return _UNKNOWN_ROOT
        has_parent_field = isinstance(getattr(span, "parent", span), (trace.SpanContext, type(None)))
        if has_parent_field and is_local_root(span):
            if (
                ref.span_id not in self._active_roots and ref.span_id not in self._ended_roots
            ):  # it began before the profiler
                self._add_root(span)
                if getattr(span, "end_time", None) is not None:  # or it is long gone, and only the context still has it
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
        try:
            known.popitem(last=False)
        except KeyError:  # other threads made room
            return
