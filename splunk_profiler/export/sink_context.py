"""The argument of `open_sink`, which each module of a sink defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from splunk_profiler.config import Resolved

if TYPE_CHECKING:
    from splunk_profiler.code_origin.classifier import CodeClassifier


class Resource(Protocol):
    """The part of the SDK's resource that encoders use."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Description of the process."""

    @property
    def schema_url(self) -> str:
        """Schema of the attributes."""


class ProcessResource(NamedTuple):
    """The same without the SDK."""

    attributes: Mapping[str, Any]
    schema_url: str = ""


class SinkContext(NamedTuple):
    """The properties of the exporting process.

    Attributes:
        resource: returns the resource of the process; called with each export.
        classifier: classifies code by its file, for profiles.
        share_connection: use the application's trace exporter's connection, which this process has and owns: not as a
            forked child, nor beside the application.
    """

    resolved: Resolved
    resource: Callable[[], Resource]
    classifier: CodeClassifier | None
    share_connection: bool
