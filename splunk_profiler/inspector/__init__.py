"""A reader of other processes, as a host profiler reads them; shares no code with our publisher."""

from __future__ import annotations

from splunk_profiler.inspector.errors import InspectorError
from splunk_profiler.inspector.model import Report
from splunk_profiler.inspector.reader import Reader

__all__ = ["InspectorError", "Reader", "Report"]
