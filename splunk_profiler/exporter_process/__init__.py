"""The exporter process: `launch` and `connection` run in the host, `__main__` and `server` in the process itself.

Docs: docs/internals/exporter-process.md.
"""

TITLE = "splunk-profiler exporter for PID"  # in its command line, before the process id of its first host
