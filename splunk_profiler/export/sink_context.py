"""The argument of `open_sink`, which each module of a sink defines. Imports the settings only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from splunk_profiler.config import Resolved

if TYPE_CHECKING:
    from splunk_profiler.code_origin.classifier import CodeClassifier


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The properties of the exporting process.

    Attributes:
        resource: returns the resource of the process; called with each export.
        classifier: classifies code by its file, for profiles.
        share_connection: False in a forked child: the parent owns the trace exporter's connection.
    """

    resolved: Resolved
    resource: Callable[[], Any]
    classifier: CodeClassifier | None = None
    share_connection: bool = True
