"""Where records go: for each destination that the settings can name, the sink that it takes.

The one place where sinks are chosen: a destination is a value (`config/parsers.py`), a file in this package, and a line
here. Called on the exporting thread, or by the doctor; loads what a sink needs, which is much (gRPC, OpenTelemetry's
messages, HTTP), only when that sink is made.
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
    """Import what the sink takes; its module. A process must not fork meanwhile.

    Raises:
        ConfigError: records go nowhere.
    """
    if isinstance(resolved.destination, NoDestination):
        raise ConfigError(resolved.destination.reason)
    return import_module(f"splunk_profiler.export.{_SINK_MODULES[type(resolved.destination)]}")


def make_sink(
    resolved: Resolved, resource: Callable[[], Any], classifier: CodeClassifier | None = None, *, share_connection: bool
) -> Sink[Any]:
    """The sink for the records of a process. See `SinkContext` for the arguments.

    Raises:
        ConfigError: they go nowhere.
    """
    sink: Sink[Any] = load_sink_module(resolved).open_sink(
        SinkContext(resolved, resource, classifier, share_connection)
    )
    return sink


def describe(resolved: Resolved) -> str:
    """In words for a log line: where records go, and which setting says so."""
    endpoint = resolved.endpoint
    if endpoint is not None:
        return f"{endpoint.url} (from {endpoint.setting})"
    return f"{resolved.config.destination.description} (from {resolved.origins.get('output', 'default')})"
