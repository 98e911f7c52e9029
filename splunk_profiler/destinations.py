"""Where records go: for each destination that the settings can name, the sink that it takes.

The one place where sinks are chosen. Called on the exporting thread, or by the doctor; loads what a sink needs, which
is much (gRPC, OpenTelemetry's messages, HTTP), only when that sink is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splunk_profiler import spans
from splunk_profiler.config import Resolved
from splunk_profiler.model import Sink
from splunk_profiler.values import Agent, Directory

if TYPE_CHECKING:
    from splunk_profiler.provenance import Provenance


def make_sink(
    resolved: Resolved, resource: Callable[[], Any], provenance: Provenance | None = None, *, share_connection: bool
) -> Sink[Any]:
    """The sink for the records of a process.

    Args:
        resolved: the settings.
        resource: the resource of the process.
        provenance: whose code is in which file, for profiles.
        share_connection: False in a forked child, where the trace exporter's connection is the parent's.
    """
    destination = resolved.config.destination
    if isinstance(destination, Directory):
        from splunk_profiler.sinks.files import ProfileFiles  # noqa: PLC0415

        return ProfileFiles(Path(destination.path), resource, provenance)
    if isinstance(destination, Agent):
        from splunk_profiler.sinks.datadog import DatadogSink  # noqa: PLC0415
        from splunk_profiler.sinks.datadog_form import ProfileForms  # noqa: PLC0415

        return DatadogSink(destination, ProfileForms(resource, provenance).form)
    return _collector(resolved, resource, provenance, share_connection)


def said(resolved: Resolved) -> str:
    """In words for a log line: where records go, and which setting says so."""
    destination, origin = resolved.config.destination, resolved.origins.get("output", "default")
    if isinstance(destination, Directory):
        return f"files in {destination.path} (from {origin})"
    if isinstance(destination, Agent):
        return f"the Datadog agent at {destination.url} (from {origin})"
    return f"{resolved.endpoint.url} (from {resolved.endpoint.setting})"


def _collector(
    resolved: Resolved, resource: Callable[[], Any], provenance: Provenance | None, share_connection: bool
) -> Sink[Any]:
    from splunk_profiler.formats.text import body  # noqa: PLC0415
    from splunk_profiler.sinks.encoding import Encoder  # noqa: PLC0415  # loads OpenTelemetry's messages
    from splunk_profiler.sinks.otlp import OtlpSink  # noqa: PLC0415  # loads gRPC
    from splunk_profiler.sinks.profile_encoding import ProfileEncoder  # noqa: PLC0415

    if resolved.config.aggregates:
        encode: Callable[[Any], bytes] = ProfileEncoder(resource, provenance).encode
    else:
        encode = Encoder(resource, body).encode
    return OtlpSink(
        resolved.endpoint, encode, resolved.transport, spans.tracer_provider, share_connection=share_connection
    )
