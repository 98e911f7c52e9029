"""The resource of the records: that of the `TracerProvider`, with this process's id.

Runs on the exporting thread; loads the OpenTelemetry SDK. Specification: Splunk profiling conventions,
"ResourceLogs".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opentelemetry.sdk.resources import PROCESS_PID, SERVICE_INSTANCE_ID, SERVICE_NAME, OTELResourceDetector, Resource

from splunk_profiler.otel.spans import tracer_provider
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import enough_stack

_UNKNOWN = "unknown_service:python"


def current_resource(configured: Mapping[str, Any]) -> Resource:
    """Return the provider's resource; without a provider, `configured` attributes and what detectors find.

    ``process.pid`` is always this process's: a provider made before a fork has its parent's.
    """
    resource, pid = getattr(tracer_provider(), "resource", None), os.getpid()
    return _with_pid(resource if isinstance(resource, Resource) else _detect_own(pid, tuple(configured.items())), pid)


@lru_cache(maxsize=1)
def _detect_own(pid: int, configured: tuple[tuple[str, Any], ...]) -> Resource:  # noqa: ARG001  # detectors may read it
    return _detect(dict(configured), SERVICE_INSTANCE_ID)


def detect_resource(configured: Mapping[str, Any]) -> Resource:
    """Return the resource of another process, whose attributes are `configured`: detectors describe this one."""
    return _detect(configured, SERVICE_INSTANCE_ID, "process.")


def _detect(configured: Mapping[str, Any], *without: str) -> Resource:
    """Return `configured` attributes and those that detectors find, without those that begin with one of `without`.

    One is ``service.instance.id``, which newer SDKs invent: a later provider and its spans may have another one. What
    the environment says now counts for nothing: the application may have changed it since the start.
    """
    try:
        with enough_stack():  # the SDK's detectors have threads of their own
            resource = Resource.create(dict(configured))
        of_environment = OTELResourceDetector().detect().attributes
    # An ending interpreter cannot start the thread pool of the detectors, or `os.environ` was replaced.
    except (RuntimeError, AttributeError, TypeError):
        logger.debug("the resource cannot be detected", exc_info=True)
        return Resource({SERVICE_NAME: _UNKNOWN, **configured})
    found = {
        key: value
        for key, value in resource.attributes.items()
        if key in configured or not (key in of_environment or key.startswith(without))
    }
    return Resource({SERVICE_NAME: _UNKNOWN, **found}, resource.schema_url)


@lru_cache(maxsize=8)
def _with_pid(resource: Resource, pid: int) -> Resource:
    return resource.merge(Resource({PROCESS_PID: pid}))


def is_service_known(configured: Mapping[str, Any]) -> bool:
    """Return True if there is a `TracerProvider`, or `configured` attributes or a detector name the service."""
    if tracer_provider() is not None:
        return True
    name = current_resource(configured).attributes.get(SERVICE_NAME)
    return isinstance(name, str) and not name.startswith("unknown_service")
