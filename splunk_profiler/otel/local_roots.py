"""Local roots: the spans with which traces enter this process. Their names are the endpoints of samples.

`LocalRootTracker` is a span processor of the application's provider. A span has its parent's ids, not
its parent: `on_start`, on the application's threads, gives each span that has a parent in this process
an attribute with its local root. So a trace may enter the process several times, and nothing has to be
forgotten. The other methods run on the sampler thread. Never imports the SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.context import get_value

from splunk_profiler.model import SpanRef
from splunk_profiler.otel import spans
from splunk_profiler.otel.span_processors import SpanListener, is_local_root
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.printable import shortened

ROOT_ATTRIBUTE = "_splunk_profiler_local_root"  # of a span
_MAX_SAMPLED = 4096
_UNKNOWN_ROOT = 0
_PARENTS = (trace.SpanContext, type(None))


class LocalRootTracker(SpanListener):
    """The local roots of this process's spans; `lookup_published_root` knows the ids of others that are published."""

    def __init__(self, lookup_published_root: Callable[[Any], int | None]) -> None:
        super().__init__()
        self.lookup_published_root = lookup_published_root
        self._guard = Guard("tracking the local roots of spans")
        self._sampled_roots: dict[int, Any] = {}  # by id, of samples whose endpoint may still change

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Give the span the local root of its parent."""
        try:
            if is_local_root(span):
                return
            parent: Any = get_value(spans.SPAN_KEY, parent_context)
            # It is another one if the provider calls its processors on other threads.
            root = _local_root(parent) if parent is not None and parent.get_span_context() is span.parent else None
            if root is not None:
                setattr(span, ROOT_ATTRIBUTE, root)  # not by `__dict__`, which makes a span larger and slower
        except Exception as error:
            self._guard.note(error)

    def span_ref(self, context: Any) -> SpanRef | None:
        """Return what `spans.span_ref` returns, with the local root as far as it is known."""
        span = trace.get_current_span(context)
        ids = span.get_span_context()
        if not ids.is_valid:
            return None
        root = _local_root(span)
        if root is None:
            root_id = self.lookup_published_root(span) or _UNKNOWN_ROOT
            root = self._sampled_roots.get(root_id)
        else:
            root_id = root.get_span_context().span_id
            self._keep(root_id, root)
        return spans.make_ref(ids, root_id, _name(root))

    def _keep(self, root_id: int, root: Any) -> None:
        if root_id not in self._sampled_roots and len(self._sampled_roots) >= _MAX_SAMPLED:
            del self._sampled_roots[next(iter(self._sampled_roots))]
        self._sampled_roots[root_id] = root

    def forget_sampled(self) -> None:
        """Forget the roots of samples that were taken so far."""
        self._sampled_roots.clear()

    def current_name(self, root_id: int) -> tuple[str, bool]:
        """Return the name of a sampled span's local root, and True if it is final; empty if it is not known any more.

        A root whose name is final is forgotten.
        """
        root = self._sampled_roots.get(root_id)
        is_final = getattr(root, "end_time", None) is not None
        if is_final:
            del self._sampled_roots[root_id]
        return _name(root), is_final or root is None


def _local_root(span: Any) -> Any | None:
    """Return the local root of a span, if it is known."""
    found = getattr(span, ROOT_ATTRIBUTE, None)
    if found is not None:
        return found
    parent = getattr(span, "parent", span)  # only the SDK's spans that record know theirs
    return span if isinstance(parent, _PARENTS) and is_local_root(span) else None


def _name(root: Any) -> str:
    name = getattr(root, "name", "")
    return shortened(name) if type(name) is str else ""
