"""The choice of a sink for a destination.

A new destination is a value in `config/parsers.py`, a module in this package and a line here. Runs
on the exporting thread or in the doctor. Loads the modules of the chosen sink alone, because gRPC,
OpenTelemetry's messages and HTTP are large.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from splunk_profiler.config import Resolved
from splunk_profiler.config.parsers import Collector, ConfigError, DatadogAgent, Directory, NoDestination
from splunk_profiler.export.sink_context import SinkContext

if TYPE_CHECKING:
    from splunk_profiler.samples import Sink  # a service needs the description alone

# Destination → the module below `export` whose `open_sink` makes its sink.
_SINK_MODULES: dict[type, str] = {
    Collector: "otlp.exporter",
    Directory: "files",
    DatadogAgent: "datadog.exporter",
}


def load_sink_module(resolved: Resolved) -> Any:
    """Import and return the module of the sink; `ConfigError` if there is none. The process must not fork meanwhile."""
    if isinstance(resolved.destination, NoDestination):
        raise ConfigError(resolved.destination.reason)
    return import_module(f"splunk_profiler.export.{_SINK_MODULES[type(resolved.destination)]}")


def make_sink(context: SinkContext) -> Sink[Any]:
    """Make the sink of a process; `ConfigError` if there is no destination."""
    sink: Sink[Any] = load_sink_module(context.resolved).open_sink(context)
    return sink


def describe(resolved: Resolved) -> str:
    """Return the destination and its setting in words for a log line."""
    if (endpoint := resolved.endpoint) is not None:
        return f"{endpoint.url} (from {endpoint.setting})"
    return f"{resolved.config.destination.description} (from {resolved.origins.get('output', 'default')})"
