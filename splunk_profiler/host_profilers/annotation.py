"""Copies of ended spans with stack-trace ids and the host id; the originals stay as they are.

Runs on the thread that forwards a span. Loads nothing of the SDK: its types come from the spans. A
span rebuilt through its public properties would lose its counts of dropped items.

Specification: Elastic universal profiling integration, "Correlation Attribute" and, for ``host.id``, "Profiler
Registration Message".
"""

from __future__ import annotations

import copy
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.attributes import BoundedAttributes

STACK_TRACE_IDS = "elastic.profiler_stack_trace_ids"
HOST_ID = "host.id"
_MAX_RESOURCES = 64


def transaction_key(context: Any) -> int:
    """Return trace id (128 bits) and span id (64 bits) of a ``SpanContext`` as one number, as messages have them."""
    key: int = context[0] << 64 | context[1]  # a context is a tuple; its properties take ten times as long
    return key


def is_transaction(span: Any, context: Any) -> bool:
    """Return True if `span` is a sampled local root."""
    if not context[3] & 1:
        return False
    parent = span.parent
    return parent is None or bool(parent[2])


def encode_stack_ids(stacks: Mapping[bytes, int]) -> list[str]:
    """Return each id as often as it was seen, in URL-safe base64 without padding."""
    ids: list[str] = []
    for stack_trace_id, count in list(stacks.items()):
        ids += [urlsafe_b64encode(stack_trace_id).rstrip(b"=").decode()] * count
    return ids


def copy_with_stacks(span: Any, stacks: Mapping[bytes, int]) -> Any:
    """Return a copy of `span` with `STACK_TRACE_IDS`, even beyond the limit of attributes."""
    span_copy = copy.copy(span)
    before = span._attributes
    attributes = BoundedAttributes(
        attributes={**(before or {}), STACK_TRACE_IDS: encode_stack_ids(stacks)}, immutable=True
    )
    attributes.dropped = getattr(before, "dropped", 0)
    span_copy._attributes = attributes
    return span_copy


class HostId:
    """The host id that a host profiler sent, empty until then, and resources with it.

    A resource keeps its own id; `on_mismatch` is called with that and the profiler's, if they differ.
    """

    def __init__(self, on_mismatch: Callable[[str, str], None]) -> None:
        self.value = ""
        self._on_mismatch = on_mismatch
        self._resources: dict[tuple[int, str], tuple[Any, Any]] = {}  # by id(): faster than equality

    def add_to_span(self, span: Any) -> Any:
        """Return `span`, or a copy whose resource has the id."""
        if not self.value:
            return span
        resource = self.resource(span.resource)
        if resource is span.resource:
            return span
        span_copy = copy.copy(span)
        span_copy._resource = resource
        return span_copy

    def resource(self, resource: Any) -> Any:
        """Return `resource`, or one with the id."""
        value = self.value
        if not value:
            return resource
        known = self._resources.get((id(resource), value))
        if known is not None:
            return known[1]
        own = resource.attributes.get(HOST_ID)
        if own and own != value:
            self._on_mismatch(str(own), value)
        merged_resource = resource if own else resource.merge(type(resource)({HOST_ID: value}))
        if len(self._resources) >= _MAX_RESOURCES:
            self._resources = {}
        self._resources[id(resource), value] = (resource, merged_resource)  # kept: its id() must not be reused
        return merged_resource
