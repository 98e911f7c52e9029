"""The table of settings; tests check the documentation's and the doctor's lists against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from splunk_profiler.config.otlp_transport import LOGS_HEADERS_SETTING
from splunk_profiler.config.parsers import (
    choice_parser,
    integer_parser,
    parse_auto_boolean,
    parse_boolean,
    parse_directory,
    parse_overhead,
    parse_probability,
    quote_redacted,
    redact,
    validate_destination,
    validate_endpoint,
)
from splunk_profiler.config.tree import TREE

_PREFIXES = ("OTEL_", "SPLUNK_", "DD_TAGS")  # of the variables that resolving a `Config` may read


class Setting(NamedTuple):
    """An environment variable: name, `Config` field, parser, and True if it is secret."""

    name: str
    field: str
    parse: Callable[[str], Any]
    is_secret: bool = False

    def redact(self, value: object) -> str:
        """Return `value` like `parsers.redact`, or ``***`` for a secret."""
        return "***" if self.is_secret else redact(str(value))

    def quote_redacted(self, value: object) -> str:
        """Return `value` like `parsers.quote_redacted`, or ``***`` for a secret."""
        return "'***'" if self.is_secret else quote_redacted(value)


SETTINGS: tuple[Setting, ...] = (
    Setting("SPLUNK_PROFILER_ENABLED", "enabled", parse_boolean),
    Setting("SPLUNK_PROFILER_LOGS_ENDPOINT", "logs_endpoint", validate_endpoint),
    Setting(LOGS_HEADERS_SETTING, "logs_headers", str, is_secret=True),
    Setting("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "call_stack_interval_ms", integer_parser(1, 3_600_000)),
    Setting("SPLUNK_PROFILER_MAX_OVERHEAD", "max_overhead", parse_overhead),
    Setting("SPLUNK_PROFILER_EXPORT_INTERVAL", "export_interval_ms", integer_parser(1, 600_000)),
    Setting("SPLUNK_PROFILER_MAX_STACK_DEPTH", "max_stack_depth", integer_parser(1, 65_536)),
    Setting("SPLUNK_PROFILER_INCLUDE_INTERNAL_STACKS", "include_internal_stacks", parse_boolean),
    Setting("SPLUNK_PROFILER_TRACING_STACKS_ONLY", "tracing_stacks_only", parse_boolean),
    Setting("SPLUNK_PROFILER_DATA_FORMAT", "data_format", choice_parser("text", "pprof-gzip-base64")),
    Setting("SPLUNK_PROFILER_OUTPUT", "output", validate_destination),
    Setting("SPLUNK_PROFILER_GC_EVENTS_ENABLED", "gc_events", parse_auto_boolean),
    Setting("SPLUNK_PROFILER_MAX_TASKS", "max_tasks", integer_parser(0, 1000)),
    Setting("SPLUNK_PROFILER_LOOP_BLOCKED_MS", "loop_blocked_ms", integer_parser(0, 600_000)),
    Setting("SPLUNK_PROFILER_EXCEPTIONS_ENABLED", "exceptions_enabled", parse_boolean),
    Setting("SPLUNK_PROFILER_EXCEPTIONS_INTERVAL", "exceptions_interval", integer_parser(1, 1_000_000)),
    Setting("SPLUNK_PROFILER_SPAN_RUNTIME_ID_ENABLED", "span_runtime_id", parse_auto_boolean),
    Setting("SPLUNK_PROFILER_WALKER", "walker", choice_parser("auto", "native", "portable")),
    Setting("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED", "correlation", parse_auto_boolean),
    Setting("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR", "socket_directory", parse_directory),
    Setting(
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE",
        "correlation_buffer_size",
        integer_parser(1, 1_000_000),
    ),
    Setting("SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED", "custom_labels", parse_auto_boolean),
    Setting("SPLUNK_PROFILER_PRELOAD_ENABLED", "preload", parse_auto_boolean),
    Setting("SPLUNK_PROFILER_EXPORTER", "exporter", choice_parser("auto", "process", "thread")),
    Setting("SPLUNK_PROFILER_MEMORY_ENABLED", "memory_enabled", parse_boolean),
    Setting("SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES", "memory_sample_bytes", integer_parser(1024, 1 << 30)),
    Setting("SPLUNK_SNAPSHOT_PROFILER_ENABLED", "snapshot_enabled", parse_boolean),
    Setting("SPLUNK_SNAPSHOT_SAMPLING_INTERVAL", "snapshot_interval_ms", integer_parser(1, 3_600_000)),
    Setting("SPLUNK_SNAPSHOT_SELECTION_PROBABILITY", "snapshot_probability", parse_probability),
)


def select_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `env` that resolving a `Config` may read."""
    return {name: value for name, value in env.items() if name.startswith(_PREFIXES) and name != TREE}
