"""The start of a tree of processes by `opentelemetry-instrument`, so that workers that are executed share an exporter.

The launcher loads this to learn of variables that begin with ``OTEL_``, of which this has none: just before it becomes
the application, and without another thread. In the application it is too late: the SDK has threads by then. An
exception would end the launcher.
"""

import os
from contextlib import suppress

with suppress(Exception):
    from splunk_profiler.activation import is_surely_off

    if not is_surely_off():
        from splunk_profiler.config.tree import begin_tree

        begin_tree(os.environ)
