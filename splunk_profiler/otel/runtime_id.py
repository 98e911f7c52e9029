"""An id of the process, on the resource of profiles and, if asked for, on that of spans.

`ResourceTagger` owns what it has put on a `TracerProvider`: a resource in the place of the application's, on the
provider and on the tracers that were made before, so that a span costs nothing more. Where an older SDK does not know
its tracers, each span gets it starts. The application's own resource object stays as it is, and what it says of
itself goes before what we would say. Called on the thread that starts or stops the profiler, on the sampling worker's
and on the exporting one. Knows the SDK by what it looks like and loads nothing of it; takes no lock of a newer one's,
which a fork may have left locked.

Specification: "How linking of traces to profiles works" of the Datadog notes (``runtime-id``); OpenTelemetry's semantic
conventions (``service.instance.id``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from splunk_profiler.otel.providers import SpanStartInstaller
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import real_lock

RUNTIME_ID = "runtime-id"
INSTANCE_ID = "service.instance.id"
_KEYS: tuple[str, ...] = (RUNTIME_ID, INSTANCE_ID)
_RECORD_KEYS: tuple[str, ...] = (RUNTIME_ID,)
_DETACH_TIMEOUT_S = 1.0  # for another thread that is about to put the id somewhere, which takes microseconds


@dataclass(frozen=True, slots=True)
class RuntimeId:
    """The id of this process.

    Attributes:
        value: a random UUID.
        former_values: those of the processes that this one was forked from, which its resources may still carry.
    """

    value: str
    former_values: frozenset[str] = frozenset()

    @classmethod
    def new(cls) -> RuntimeId:
        """That of a process that was not forked from one with an id."""
        return cls(str(uuid4()))

    def new_for_child(self) -> RuntimeId:
        """That of a forked child of this process."""
        return RuntimeId(str(uuid4()), self.former_values | {self.value})

    def missing_attributes(self, attributes: Mapping[str, Any], keys: tuple[str, ...] = _KEYS) -> dict[str, str]:
        """What is to be added to a resource: where it has no id, or one that was ours before a fork."""
        return {key: self.value for key in keys if attributes.get(key, "") in ("", *self.former_values)}

    def foreign_attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """What a resource says without us."""
        ours = (self.value, *self.former_values)
        return {key: value for key, value in attributes.items() if key not in _KEYS or value not in ours}


class ResourceTagger:
    """The resources of one life of the profiler that carry the id.

    Args:
        runtime_id: the id.
        on_spans: whether spans carry it. Else the application's provider is left alone.
    """

    def __init__(self, runtime_id: RuntimeId, *, on_spans: bool) -> None:
        self._runtime_id = runtime_id
        self._on_spans = on_spans
        self._guard = Guard("saying on spans which process they come from")
        self._cached: tuple[Any, tuple[str, ...], Any] | None = None
        self._lock = real_lock()  # guards what follows
        self._provider: Any = None
        self._original_resource: Any = None  # the resource that it had
        self._tagged: Any = None  # the one in its place
        self._tagged_tracer_count = 0  # how many have got it
        self._installer: SpanStartInstaller | None = None  # of an older SDK, whose provider and tracers keep theirs
        self._pid = os.getpid()
        self._is_detached = False

    def resource(self, resource: Any) -> Any:
        """`resource`, or one with the id: the same one as long as it is asked about the same one.

        ``service.instance.id`` is the application's to say. It is ours only where spans say so as well, or one process
        would be two instances.
        """
        keys = _RECORD_KEYS if self._provider is None else _KEYS
        cached = self._cached
        if cached is not None and cached[0] is resource and cached[1] is keys:
            return cached[2]
        tagged = self._with_id(resource, keys)
        self._cached = (resource, keys, tagged)
        return tagged

    def attach(self, provider: Any) -> None:
        """Have spans of `provider` carry the id from now on. Costs next to nothing where they do; never raises."""
        resource = getattr(provider, "_resource", None)
        if (
            not self._on_spans
            or resource is None
            or self._is_tagged(provider, resource)
            or not self._lock.acquire(False)
        ):
            return
        try:
            if not self._is_detached:
                with self._guard.catching():
                    self._tag_provider(provider, resource)
        finally:
            self._lock.release()

    def detach(self) -> None:
        """Take the id away again: spans that start from now on have the application's own resource."""
        acquired = self._lock.acquire(timeout=_DETACH_TIMEOUT_S)
        self._is_detached = True
        try:
            with self._guard.catching():
                self._untag_provider()
        finally:
            if acquired:
                self._lock.release()

    def _is_tagged(self, provider: Any, resource: Any) -> bool:
        """False also for a tracer that was being made when the others got the resource, and has the old one."""
        if provider is not self._provider:
            return False
        if self._installer is not None:
            return resource is self._original_resource
        return resource is self._tagged and len(getattr(provider, "_tracers", ())) == self._tagged_tracer_count

    def _tag_provider(self, provider: Any, resource: Any) -> None:
        if provider is not self._provider:
            self._untag_provider()
            self._provider = provider
        if resource is not self._tagged:
            self._original_resource, self._tagged = resource, self._with_id(resource)
        tracers = getattr(provider, "_tracers", None)
        if tracers is None:  # an older SDK
            if self._installer is None:
                self._installer = SpanStartInstaller(self._on_start)
                self._installer.attach(provider._active_span_processor)
            return
        provider._resource = self._tagged
        current_tracers = list(tracers.values())
        for tracer in current_tracers:
            if tracer.resource is self._original_resource:
                tracer.resource = self._tagged
        self._tagged_tracer_count = len(current_tracers)

    def _untag_provider(self) -> None:
        provider, tagged, self._provider = self._provider, self._tagged, None
        if provider is None:
            return
        installer, self._installer = self._installer, None
        if installer is not None:
            installer.detach()
            return
        resource = provider._resource
        untagged = self._without_id(self._original_resource if resource is tagged else resource)
        provider._resource = untagged
        for tracer in list(getattr(provider, "_tracers", {}).values()):
            if tracer.resource is resource or tracer.resource is tagged:
                tracer.resource = untagged
        self._original_resource = self._tagged = None
        self._tagged_tracer_count = 0

    def _on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        # In a forked child this one is among the processors still, beside the child's own.
        try:
            if span._resource is self._original_resource and os.getpid() == self._pid:
                span._resource = self._tagged
        except Exception as error:
            self._guard.note(error)

    def _with_id(self, resource: Any, keys: tuple[str, ...] = _KEYS) -> Any:
        missing_attributes = self._runtime_id.missing_attributes(resource.attributes, keys)
        return resource.merge(type(resource)(missing_attributes)) if missing_attributes else resource

    def _without_id(self, resource: Any) -> Any:
        """As the application would have it, where the SDK has added something since (in a forked child, it does)."""
        foreign_attributes = self._runtime_id.foreign_attributes(resource.attributes)
        if len(foreign_attributes) == len(resource.attributes):
            return resource
        return type(resource)(foreign_attributes, resource.schema_url)
