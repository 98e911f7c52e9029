"""Whether the profiler is surely off, found out without loading anything.

A process that is not profiled must not pay for the profiler, not even for its settings' parser: this looks at
the variables that decide, once, when the first `start` imports it. Anything but "not set" and "false" (and, for
what is published to host profilers, "auto") is left to `config`, which also warns.
"""

from __future__ import annotations

import os

SURELY_OFF = all(
    os.environ.get(name, "").strip().lower() in ("", "false")
    for name in ("SPLUNK_PROFILER_ENABLED", "SPLUNK_SNAPSHOT_PROFILER_ENABLED")
) and all(
    os.environ.get(name, "").strip().lower() in ("", "false", "auto")
    for name in ("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED", "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED")
)
