"""An id of the process, on the resource of profiles and, if asked for, on that of spans.

`ResourceTagger` owns what it has put on a `TracerProvider`: a resource in the place of the application's, on the
provider and on the tracers that were made before, so that a span costs nothing more. Where an older SDK does not know
its tracers, each span gets it as it starts. The application's own resource object stays as it is, and what it says of
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

from splunk_profiler.otel.providers import Providers
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import real_lock

RUNTIME_ID = "runtime-id"
INSTANCE_ID = "service.instance.id"
_KEYS: tuple[str, ...] = (RUNTIME_ID, INSTANCE_ID)
_KEYS_OF_RECORDS: tuple[str, ...] = (RUNTIME_ID,)
_LEAVING_S = 1.0  # for another thread that is about to put the id somewhere, which takes microseconds


@dataclass(frozen=True, slots=True)
class RuntimeId:
    """The id of this process.

    Attributes:
        value: a random UUID.
        former: those of the processes that this one was forked from, which its resources may still carry.
    """

    value: str
    former: frozenset[str] = frozenset()

    @classmethod
    def new(cls) -> RuntimeId:
        """That of a process that was not forked from one with an id."""
        return cls(str(uuid4()))

    def of_child(self) -> RuntimeId:
        """That of a forked child of this process."""
        return RuntimeId(str(uuid4()), self.former | {self.value})

    def missing(self, attributes: Mapping[str, Any], keys: tuple[str, ...] = _KEYS) -> dict[str, str]:
        """What is to be added to a resource: where it has no id, or one that was ours before a fork."""
        return {key: self.value for key in keys if attributes.get(key, "") in ("", *self.former)}

    def others(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """What a resource says without us."""
        ours = (self.value, *self.former)
        return {key: value for key, value in attributes.items() if key not in _KEYS or value not in ours}


class ResourceTagger:
    """The resources of one life of the profiler that carry the id.

    Args:
        identity: the id.
        on_spans: whether spans carry it. Else the application's provider is left alone.
    """

    def __init__(self, identity: RuntimeId, *, on_spans: bool) -> None:
        self._identity = identity
        self._on_spans = on_spans
        self._guard = Guard("saying on spans which process they come from")
        self._last: tuple[Any, tuple[str, ...], Any] | None = None
        self._lock = real_lock()  # guards what follows
        self._provider: Any = None
        self._original: Any = None  # the resource that it had
        self._said: Any = None  # the one in its place
        self._tracers = 0  # how many have got it
        self._starting: Providers | None = None  # of an older SDK, whose provider and tracers keep theirs
        self._pid = os.getpid()
        self._left = False

    def resource(self, resource: Any) -> Any:
        """`resource`, or one with the id: the same one as long as it is asked about the same one.

        ``service.instance.id`` is the application's to say. It is ours only where spans say so as well, or one process
        would be two instances.
        """
        keys = _KEYS_OF_RECORDS if self._provider is None else _KEYS
        last = self._last
        if last is not None and last[0] is resource and last[1] is keys:
            return last[2]
        said = self._with_id(resource, keys)
        self._last = (resource, keys, said)
        return said

    def meet(self, provider: Any) -> None:
        """Have spans of `provider` carry the id from now on. Costs next to nothing where they do; never raises."""
        resource = getattr(provider, "_resource", None)
        if not self._on_spans or resource is None or self._is_done(provider, resource) or not self._lock.acquire(False):
            return
        try:
            if not self._left:
                with self._guard.watching():
                    self._put_on(provider, resource)
        finally:
            self._lock.release()

    def leave(self) -> None:
        """Take the id away again: spans that start from now on have the application's own resource."""
        held = self._lock.acquire(timeout=_LEAVING_S)
        self._left = True
        try:
            with self._guard.watching():
                self._take_away()
        finally:
            if held:
                self._lock.release()

    def _is_done(self, provider: Any, resource: Any) -> bool:
        """False also for a tracer that was being made when the others got the resource, and has the old one."""
        if provider is not self._provider:
            return False
        if self._starting is not None:
            return resource is self._original
        return resource is self._said and len(getattr(provider, "_tracers", ())) == self._tracers

    def _put_on(self, provider: Any, resource: Any) -> None:
        if provider is not self._provider:
            self._take_away()
            self._provider = provider
        if resource is not self._said:
            self._original, self._said = resource, self._with_id(resource)
        tracers = getattr(provider, "_tracers", None)
        if tracers is None:  # an older SDK
            if self._starting is None:
                self._starting = Providers(self._on_start)
                self._starting.meet(provider._active_span_processor)
            return
        provider._resource = self._said
        made = list(tracers.values())
        for tracer in made:
            if tracer.resource is self._original:
                tracer.resource = self._said
        self._tracers = len(made)

    def _take_away(self) -> None:
        provider, said, self._provider = self._provider, self._said, None
        if provider is None:
            return
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.leave()
            return
        resource = provider._resource
        before = self._without_id(self._original if resource is said else resource)
        provider._resource = before
        for tracer in list(getattr(provider, "_tracers", {}).values()):
            if tracer.resource is resource or tracer.resource is said:
                tracer.resource = before
        self._original = self._said = None
        self._tracers = 0

    def _on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        # In a forked child this one is among the processors still, beside the child's own.
        try:
            if span._resource is self._original and os.getpid() == self._pid:
                span._resource = self._said
        except Exception as error:
            self._guard.note(error)

    def _with_id(self, resource: Any, keys: tuple[str, ...] = _KEYS) -> Any:
        missing = self._identity.missing(resource.attributes, keys)
        return resource.merge(type(resource)(missing)) if missing else resource

    def _without_id(self, resource: Any) -> Any:
        """As the application would have it, where the SDK has added something since (in a forked child, it does)."""
        others = self._identity.others(resource.attributes)
        if len(others) == len(resource.attributes):
            return resource
        return type(resource)(others, resource.schema_url)
