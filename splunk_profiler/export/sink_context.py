"""The facts that a sink is made from. Each destination of `export` has a function `open_sink` that takes them.

Runs nowhere; imports the settings, and what it names for a type checker only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from splunk_profiler.config import Resolved

if TYPE_CHECKING:
    from splunk_profiler.code_origin.classifier import CodeClassifier


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Facts of the process that sends.

    Attributes:
        resolved: the settings.
        resource: the resource of the process, asked for with each export.
        classifier: whose code is in which file, for profiles.
        share_connection: False in a forked child, where the trace exporter's connection is the parent's.
    """

    resolved: Resolved
    resource: Callable[[], Any]
    classifier: CodeClassifier | None = None
    share_connection: bool = True
