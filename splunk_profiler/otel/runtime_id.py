"""An id of the process, on the resource of profiles and, if configured, on that of spans.

`ResourceTagger` replaces the resource of a `TracerProvider` and of its existing tracers, so that a
span costs nothing more. Older SDKs do not list their tracers; there each span gets the resource at
its start. The application's resource object stays unchanged, and its own ids take precedence. Runs
on the thread that starts or stops the profiler, the sampler's and the exporting one. Finds
the SDK's parts by duck typing and loads nothing of it. Takes no lock of a newer SDK: a fork may have left it locked.

Specification: "How linking of traces to profiles works" of the Datadog notes (``runtime-id``);
OpenTelemetry's semantic conventions (``service.instance.id``).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from uuid import uuid4

from splunk_profiler.otel.span_processors import SpanStartInstaller
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import OwnedLock

RUNTIME_ID = "runtime-id"
INSTANCE_ID = "service.instance.id"
_KEYS: tuple[str, ...] = (RUNTIME_ID, INSTANCE_ID)
_RECORD_KEYS: tuple[str, ...] = (RUNTIME_ID,)
_DETACH_TIMEOUT_S = 1.0  # another thread holds the lock for microseconds
_FORK_HOOK_TIMEOUT_S = 5.0  # the SDK gives a detector of resources as long


class RuntimeId(NamedTuple):
    """The id of this process, and those of the processes it was forked from, which its resources may still carry."""

    value: str
    former_values: frozenset[str] = frozenset()

    @classmethod
    def new(cls) -> RuntimeId:
        """Return the id of a process that has no parent with an id."""
        return cls(str(uuid4()))

    def new_for_child(self) -> RuntimeId:
        """Return the id of a forked child."""
        return RuntimeId(str(uuid4()), self.former_values | {self.value})


class ResourceTagger:
    """The tagger of resources, and with `on_spans` of the application's provider, from start to stop.

    Args:
        parent: in a child that Python has forked, the parent's; else None.
    """

    def __init__(self, runtime_id: RuntimeId, *, on_spans: bool, parent: ResourceTagger | None = None) -> None:
        self._runtime_id = runtime_id
        self._on_spans = on_spans
        former_id = "" if parent is None else parent._instance_id()
        self._unsettled_ids = {"", runtime_id.value, *runtime_id.former_values, former_id}
        self._settled_s = 0.0 if parent is None else clocks.monotonic() + _FORK_HOOK_TIMEOUT_S
        self._guard = Guard("adding the runtime id to spans")
        self._cached: tuple[Any, tuple[str, ...], Any] | None = None
        self._lock = OwnedLock()  # guards the following
        self._provider: Any = None
        self._original_resource: Any = None
        self._tagged: Any = None  # the resource that replaces it
        self._tagged_tracer_count = 0
        self._installer: SpanStartInstaller | None = None  # for an older SDK, whose provider and tracers keep theirs
        self._pid = os.getpid()
        self._is_detached = False

    def resource(self, resource: Any) -> Any:
        """Return `resource` with the id; the same object for the same argument.

        ``service.instance.id`` belongs to the application. It is added only if spans carry it as
        well, or one process would appear as two instances.
        """
        keys = _RECORD_KEYS if self._provider is None else _KEYS
        cached = self._cached
        if cached is not None and cached[0] is resource and cached[1] is keys:
            return cached[2]
        tagged = self._with_id(resource, keys)
        self._cached = (resource, keys, tagged)
        return tagged

    def is_settled(self, provider: Any) -> bool:
        """Return False in a forked child while a newer SDK is still to give `provider` another instance id.

        The SDK's hook runs after ours if the provider was made after the profiler's start. Records that are sent
        before would make one process two instances.
        """
        if clocks.monotonic() >= self._settled_s or not hasattr(provider, "_handle_fork"):
            return True
        return provider.resource.attributes.get(INSTANCE_ID, "") not in self._unsettled_ids

    def record_attributes(self) -> dict[str, str]:
        """Return what `resource` adds while the service has no resource."""
        return dict.fromkeys(_RECORD_KEYS, self._runtime_id.value)

    def attach(self, provider: Any) -> None:
        """Tag spans of `provider` from now on. Cheap if they are tagged already; never raises."""
        resource = getattr(provider, "_resource", None)
        if not self._on_spans or resource is None or self._is_tagged(provider, resource):
            return
        if not self._lock.acquire(0):
            return
        try:
            if not self._is_detached:
                with self._guard.catching():
                    self._tag_provider(provider, resource)
        finally:
            self._lock.release()

    def detach(self) -> None:
        """Restore the application's resource for spans that start from now on."""
        self._lock.acquire(_DETACH_TIMEOUT_S)
        self._is_detached = True
        try:
            with self._guard.catching():
                self._untag_provider()
        finally:
            self._lock.release()

    def _instance_id(self) -> str:
        """Return the instance id of the resource that was tagged last; empty if it had none."""
        return "" if self._cached is None else self._cached[2].attributes.get(INSTANCE_ID, "")

    def _is_tagged(self, provider: Any, resource: Any) -> bool:
        """Return True if nothing is left to tag; False also for a tracer made while others were tagged."""
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
        current_tracers = list(tracers.values())
        for tracer in current_tracers:  # all have the provider's resource, or had it before a fork within this loop
            tracer.resource = self._tagged
        self._tagged_tracer_count = len(current_tracers)
        # Last: once the provider has the id, the spans of all its tracers have it. Not if the SDK's hook in a forked
        # child has renewed the resource meanwhile: the next call sees to that.
        if provider._resource is resource:
            provider._resource = self._tagged

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
        # A forked child still has its parent's processor, beside its own.
        try:
            if span._resource is self._original_resource and os.getpid() == self._pid:
                span._resource = self._tagged
        except Exception as error:
            self._guard.note(error)

    def _with_id(self, resource: Any, keys: tuple[str, ...] = _KEYS) -> Any:
        """Return `resource` with our id for the keys that have none, or that of a process before the fork."""
        runtime_id = self._runtime_id
        replaceable = ("", *runtime_id.former_values)
        missing = {key: runtime_id.value for key in keys if resource.attributes.get(key, "") in replaceable}
        return resource.merge(type(resource)(missing)) if missing else resource

    def _without_id(self, resource: Any) -> Any:
        """Return `resource` without our ids; the SDK may have added attributes, as in a forked child."""
        ours = (self._runtime_id.value, *self._runtime_id.former_values)
        kept = {key: value for key, value in resource.attributes.items() if key not in _KEYS or value not in ours}
        return resource if len(kept) == len(resource.attributes) else type(resource)(kept, resource.schema_url)
