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


def current_resource() -> Resource:
    """Return the provider's resource, or the detected one if there is no provider.

    ``process.pid`` is always this process's: a provider made before a fork has its parent's.
    """
    resource, pid = getattr(tracer_provider(), "resource", None), os.getpid()
    return _with_pid(resource if isinstance(resource, Resource) else _detect_resource(pid), pid)


@lru_cache(maxsize=1)
def _detect_resource(pid: int) -> Resource:  # noqa: ARG001  # detectors may read it
    try:
        return _drop_detected(Resource.create(), OTELResourceDetector().detect().attributes, SERVICE_INSTANCE_ID)
    except RuntimeError:  # an ending interpreter cannot start the thread pool of the detectors
        return Resource({SERVICE_NAME: "unknown_service:python"}).merge(OTELResourceDetector().detect())


def detect_resource(configured: Mapping[str, Any]) -> Resource:
    """Return the resource of another process, whose attributes are `configured`: detectors describe this one."""
    return _drop_detected(Resource.create(dict(configured)), configured, SERVICE_INSTANCE_ID, "process.")


def _drop_detected(resource: Resource, configured: Mapping[str, object], *prefixes: str) -> Resource:
    """Remove attributes whose names begin with one of the prefixes, but not those that are `configured`.

    One is ``service.instance.id``, which newer SDKs invent: a later provider and its spans may have another one.
    """
    others = {
        key: value for key, value in resource.attributes.items() if key in configured or not key.startswith(prefixes)
    }
    return Resource(others, resource.schema_url)


@lru_cache(maxsize=8)
def _with_pid(resource: Resource, pid: int) -> Resource:
    return resource.merge(Resource({PROCESS_PID: pid}))


def is_service_known() -> bool:
    """Return True if a `TracerProvider` is configured or the environment names the service."""
    if tracer_provider() is not None:
        return True
    name = current_resource().attributes.get(SERVICE_NAME)
    return isinstance(name, str) and not name.startswith("unknown_service")
