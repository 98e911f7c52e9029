"""Whether the profiler is surely off, found out without loading anything.

A process that is not profiled must not pay for the profiler, not even for its settings' parser: this looks at
the one variable that decides, once, when the first `start` imports it. Anything but "not set" and "false" is
left to `config`, which also warns.
"""

from __future__ import annotations

import os

SURELY_OFF = os.environ.get("SPLUNK_PROFILER_ENABLED", "").strip().lower() in ("", "false")
