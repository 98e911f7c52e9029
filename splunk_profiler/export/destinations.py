"""The choice of a sink for a destination.

A new destination is a value in `config/parsers.py`, a module in this package and a line here. Runs
on the exporting thread or in the doctor. Loads the modules of the chosen sink alone, because gRPC,
OpenTelemetry's messages and HTTP are large.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from splunk_profiler.config import Resolved
from splunk_profiler.config.parsers import Agent, Collector, ConfigError, Directory, NoDestination
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.model import Sink

if TYPE_CHECKING:
    from splunk_profiler.code_origin.classifier import CodeClassifier

# Destination → the module below `export` whose `open_sink` makes its sink.
_SINK_MODULES: dict[type, str] = {
    Collector: "otlp.exporter",
    Directory: "files",
    Agent: "datadog.exporter",
}


def load_sink_module(resolved: Resolved) -> Any:
    """Import and return the module of the sink. The process must not fork meanwhile.

    Raises:
        ConfigError: there is no destination.
    """
    if isinstance(resolved.destination, NoDestination):
        raise ConfigError(resolved.destination.reason)
    return import_module(f"splunk_profiler.export.{_SINK_MODULES[type(resolved.destination)]}")


def make_sink(
    resolved: Resolved, resource: Callable[[], Any], classifier: CodeClassifier | None = None, *, share_connection: bool
) -> Sink[Any]:
    """Make the sink of a process; `SinkContext` explains the arguments.

    Raises:
        ConfigError: there is no destination.
    """
    context = SinkContext(resolved, resource, classifier, share_connection)
    sink: Sink[Any] = load_sink_module(resolved).open_sink(context)
    return sink


def describe(resolved: Resolved) -> str:
    """Return the destination and its setting in words for a log line."""
    if (endpoint := resolved.endpoint) is not None:
        return f"{endpoint.url} (from {endpoint.setting})"
    return f"{resolved.config.destination.description} (from {resolved.origins.get('output', 'default')})"
