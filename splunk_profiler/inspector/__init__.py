"""Reads another process from outside, exactly as a host profiler would.

An island: it imports nothing else of the package, and only the command line imports it, when it is asked to. What it
knows of the published memory it knows from the specifications alone, so it can judge the publisher.
"""

from __future__ import annotations

from splunk_profiler.inspector.errors import InspectorError
from splunk_profiler.inspector.model import Report
from splunk_profiler.inspector.reader import Reader, read

__all__ = ["InspectorError", "Reader", "Report", "read"]
