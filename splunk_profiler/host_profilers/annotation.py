"""Copies of ended spans with what the host profiler has said about them; the originals stay as they are.

Called on whichever thread forwards a span. Takes spans as they come and loads nothing of the SDK: what a span is made
of tells where the SDK's types are. Rebuilding a span through its public properties would lose what it has dropped.

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
    """Trace id and span id as one number, as a message has them: 128 bits, then 64. `context` is a ``SpanContext``."""
    key: int = context[0] << 64 | context[1]  # which is a tuple; its properties take ten times as long
    return key


def is_transaction(span: Any, context: Any) -> bool:
    """Whether a span is a sampled local root, by its context and its parent's."""
    if not context[3] & 1:
        return False
    parent = span.parent
    return parent is None or bool(parent[2])


def encode_stack_ids(stacks: Mapping[bytes, int]) -> list[str]:
    """Each stack-trace id as often as it was seen, in base64 for URLs and without padding."""
    ids: list[str] = []
    for stack_trace_id, count in list(stacks.items()):
        ids += [urlsafe_b64encode(stack_trace_id).rstrip(b"=").decode()] * count
    return ids


def copy_with_stacks(span: Any, stacks: Mapping[bytes, int]) -> Any:
    """A copy of `span` that has `STACK_TRACE_IDS`, also beyond the limit of attributes."""
    span_copy = copy.copy(span)
    before = span._attributes
    attributes = BoundedAttributes(
        attributes={**(before or {}), STACK_TRACE_IDS: encode_stack_ids(stacks)}, immutable=True
    )
    attributes.dropped = getattr(before, "dropped", 0)
    span_copy._attributes = attributes
    return span_copy


class HostId:
    """Which host this is, by the host profiler's word, and the resources that say so.

    A resource that has an id of its own keeps it.

    Args:
        on_mismatch: called with the own id of a resource and with the profiler's, if they differ.

    Attributes:
        value: empty until a profiler has said it.
    """

    def __init__(self, on_mismatch: Callable[[str, str], None]) -> None:
        self.value = ""
        self._on_mismatch = on_mismatch
        self._resources: dict[tuple[int, str], tuple[Any, Any]] = {}  # by id(): comparing them would take longer

    def add_to_span(self, span: Any) -> Any:
        """`span`, or a copy of it whose resource has the id."""
        if not self.value:
            return span
        resource = self.resource(span.resource)
        if resource is span.resource:
            return span
        span_copy = copy.copy(span)
        span_copy._resource = resource
        return span_copy

    def resource(self, resource: Any) -> Any:
        """`resource`, or one with the id."""
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
        self._resources[id(resource), value] = (resource, merged_resource)  # kept, so that the id stays its own
        return merged_resource
