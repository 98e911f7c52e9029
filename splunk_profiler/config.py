"""Every setting of the profiler, parsed strictly: the only reader of the environment.

Owns `Config` and the table `SETTINGS` from which the documentation's and the doctor's lists are checked.
A wrong value never raises: it becomes one warning that names the setting, the value and what is used
instead. A `Config` made in code is checked when it is made and does raise. Runs on the caller's thread;
imports `values`, the forms of values, `transport`, its part for connections, and nothing else of ours.

Specification: Splunk profiling conventions, "Activation", "Call Stack Sampling" and "Call Stack Ingest"; Elastic
universal profiling integration, "Configuration Options".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import unquote

from splunk_profiler.transport import Transport
from splunk_profiler.transport import parse as parse_transport
from splunk_profiler.values import (
    ConfigError,
    Destination,
    Endpoint,
    destination_text,
    endpoint_text,
    integer,
    one_of,
    parse_boolean,
    parse_destination,
    parse_directory,
    parse_endpoint,
    parse_overhead,
    parse_probability,
    parse_three_way,
    shown,
)

DEFAULT_ENDPOINT = "https://localhost:4317"


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: its name, the `Config` field it fills, its parser and its meaning."""

    name: str
    field: str
    parse: Callable[[str], Any]
    meaning: str


SETTINGS: tuple[Setting, ...] = (
    Setting("SPLUNK_PROFILER_ENABLED", "enabled", parse_boolean, "switches the profiler on"),
    Setting("SPLUNK_PROFILER_LOGS_ENDPOINT", "logs_endpoint", endpoint_text, "where records are sent (OTLP/gRPC)"),
    Setting(
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL",
        "call_stack_interval_ms",
        integer(1, 3_600_000),
        "milliseconds between two samples",
    ),
    Setting(
        "SPLUNK_PROFILER_MAX_OVERHEAD",
        "max_overhead",
        parse_overhead,
        "percent of one core that the profiler may use; it samples less often rather than use more",
    ),
    Setting(
        "SPLUNK_PROFILER_EXPORT_INTERVAL",
        "export_interval_ms",
        integer(1, 600_000),
        "milliseconds that samples are gathered before they are sent",
    ),
    Setting(
        "SPLUNK_PROFILER_MAX_STACK_DEPTH",
        "max_stack_depth",
        integer(1, 65_536),
        "frames kept of a stack, from the leaf",
    ),
    Setting(
        "SPLUNK_PROFILER_INCLUDE_INTERNAL_STACKS",
        "include_internal_stacks",
        parse_boolean,
        "also sends threads of the profiler, the OpenTelemetry SDK and gRPC",
    ),
    Setting(
        "SPLUNK_PROFILER_TRACING_STACKS_ONLY",
        "tracing_stacks_only",
        parse_boolean,
        "sends only samples taken inside a span",
    ),
    Setting(
        "SPLUNK_PROFILER_DATA_FORMAT",
        "data_format",
        one_of("text", "pprof-gzip-base64"),
        "form of a record's body",
    ),
    Setting(
        "SPLUNK_PROFILER_OUTPUT",
        "output",
        destination_text,
        "what takes the profiles: a collector (otlp), a directory or a Datadog agent",
    ),
    Setting(
        "SPLUNK_PROFILER_GC_EVENTS_ENABLED",
        "gc_events",
        parse_three_way,
        "samples collections of garbage as well, where profiles are sent",
    ),
    Setting(
        "SPLUNK_PROFILER_WALKER",
        "walker",
        one_of("auto", "native", "portable"),
        "which stack walker reads the threads",
    ),
    Setting(
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED",
        "correlation",
        parse_three_way,
        "shows host profilers of Elastic's kind which span each thread is in",
    ),
    Setting(
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR",
        "socket_directory",
        parse_directory,
        "directory of the socket that host profilers send to",
    ),
    Setting(
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE",
        "correlation_buffer_size",
        integer(1, 1_000_000),
        "how many ended transactions may wait for what host profilers say of them",
    ),
    Setting(
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED",
        "custom_labels",
        parse_three_way,
        "shows host profilers of Parca's kind ids and labels of each thread",
    ),
    Setting(
        "SPLUNK_PROFILER_PRELOAD_ENABLED",
        "preload",
        parse_three_way,
        "has splunk-profiler run load the library of these labels by LD_PRELOAD",
    ),
    Setting("SPLUNK_PROFILER_MEMORY_ENABLED", "memory_enabled", parse_boolean, "memory profiling"),
    Setting(
        "SPLUNK_SNAPSHOT_PROFILER_ENABLED",
        "snapshot_enabled",
        parse_boolean,
        "samples the threads that work for selected traces more often",
    ),
    Setting(
        "SPLUNK_SNAPSHOT_SAMPLING_INTERVAL",
        "snapshot_interval_ms",
        integer(1, 3_600_000),
        "milliseconds between two samples of a snapshot profile",
    ),
    Setting(
        "SPLUNK_SNAPSHOT_SELECTION_PROBABILITY",
        "snapshot_probability",
        parse_probability,
        "share of traces that a snapshot profile is taken of",
    ),
)


_TYPES_OF_OPTIONAL: Mapping[str, type] = {"logs_endpoint": str, "export_interval_ms": int, "socket_directory": str}
_SAMPLES_INTERVAL_MS = 1_000
_PROFILES_INTERVAL_MS = 10_000


def _setting_of(field_name: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.field == field_name)


@dataclass(frozen=True, slots=True)
class Config:
    """The profiler's settings; made once, in force for the life of the process.

    Attributes:
        enabled: whether `splunk_profiler.start()` starts anything (``SPLUNK_PROFILER_ENABLED``).
        call_stack_interval_ms: milliseconds between two samples, 1 to 3,600,000.
        max_overhead: percent of one core that the profiler itself may use, above 0 and at most 100, or ``off``; it
            samples less often rather than use more.
        logs_endpoint: where records go, ``http(s)://host:port``; None follows
            ``OTEL_EXPORTER_OTLP_ENDPOINT``, then ``https://localhost:4317``.
        export_interval_ms: milliseconds that samples are gathered before they are sent, 1 to 600,000; None is 1,000
            for ``text``, 10,000 for ``pprof-gzip-base64`` and files, 60,000 for a Datadog agent.
        max_stack_depth: frames kept of a stack, counted from the leaf, 1 to 65,536.
        include_internal_stacks: also send the threads of the profiler, the OpenTelemetry SDK and gRPC.
        tracing_stacks_only: send only samples that were taken inside a span.
        data_format: ``text``, a record for each sample, or ``pprof-gzip-base64``, one for all of an export interval.
        output: ``otlp`` (a collector), ``file:DIRECTORY`` or ``datadog:http://HOST:PORT`` (a Datadog agent); the last
            two take profiles only, whatever `data_format` says.
        gc_events: whether collections of garbage are sampled, with their durations, where profiles are sent: ``true``,
            ``false`` or ``auto`` (with the native walker).
        walker: ``auto`` (native where it can be had), ``native`` or ``portable``.
        correlation: whether the context of each thread is published by Elastic's ABI, ``true``, ``false`` or
            ``auto`` (as `enabled`).
        socket_directory: where the socket for host profilers is made; None is the system's for temporary files.
        correlation_buffer_size: how many ended transactions may wait for what host profilers say of them, 1 to
            1,000,000.
        custom_labels: whether it is published by the Custom Labels ABI, ``true``, ``false`` or ``auto``.
        preload: whether ``splunk-profiler run`` loads the library of these labels at the start of the command: ``true``
            (and of all processes that it starts), ``false`` or ``auto`` (of the command alone).
        memory_enabled: known, not built yet.
        snapshot_enabled: whether selected traces are profiled closely, also with `enabled` false.
        snapshot_interval_ms: milliseconds between two samples of the threads that work for them, 1 to 3,600,000.
        snapshot_probability: share of traces that are selected, 0 to 1.

    Raises:
        ConfigError: a value that its setting does not take.
    """

    enabled: bool = False
    call_stack_interval_ms: int = 1000
    max_overhead: str = "2"
    logs_endpoint: str | None = None
    export_interval_ms: int | None = None
    max_stack_depth: int = 1024
    include_internal_stacks: bool = False
    tracing_stacks_only: bool = False
    data_format: str = "text"
    output: str = "otlp"
    gc_events: str = "auto"
    walker: str = "auto"
    correlation: str = "auto"
    socket_directory: str | None = None
    correlation_buffer_size: int = 8096
    custom_labels: str = "auto"
    preload: str = "auto"
    memory_enabled: bool = False
    snapshot_enabled: bool = False
    snapshot_interval_ms: int = 10
    snapshot_probability: float = 0.01

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None and item.default is None:
                continue
            wanted = type(item.default) if item.default is not None else _TYPES_OF_OPTIONAL[item.name]
            try:
                if type(value) is not wanted:
                    raise ConfigError(f"not of type {wanted.__name__}")
                _setting_of(item.name).parse(str(value))
            except ConfigError as error:
                raise ConfigError(f"Config({item.name}={_shown(value)}): {error}") from None

    @property
    def period_ns(self) -> int:
        """Nanoseconds between two samples."""
        return self.call_stack_interval_ms * 1_000_000

    @property
    def overhead_limit(self) -> float | None:
        """The part of one core that the profiler may use; None if there is no limit."""
        return None if self.max_overhead.lower() == "off" else float(self.max_overhead) / 100

    @property
    def export_interval_ns(self) -> int:
        """Nanoseconds that samples are gathered before they are sent."""
        usual = _PROFILES_INTERVAL_MS if self.aggregates else _SAMPLES_INTERVAL_MS
        return (self.export_interval_ms or self.destination.interval_ms or usual) * 1_000_000

    @property
    def destination(self) -> Destination:
        """What takes the records."""
        return parse_destination(self.output)

    @property
    def aggregates(self) -> bool:
        """Whether profiles are sent, not samples."""
        return self.data_format != "text" or not self.destination.takes_samples

    def notes_collections(self, *, native: bool) -> bool:
        """Whether collections of garbage are sampled, with the native walker or the portable one."""
        choice = self.gc_events.lower()
        return self.aggregates and (native if choice == "auto" else choice == "true")

    @property
    def publishes_correlation(self) -> bool:
        """Whether Elastic's ABI is published; `correlation` may ask for it with sampling off."""
        return self._wants(self.correlation)

    @property
    def publishes_labels(self) -> bool:
        """Whether the Custom Labels ABI is published; `custom_labels` may ask for it with sampling off."""
        return self._wants(self.custom_labels)

    @property
    def samples(self) -> bool:
        """Whether stacks are sampled: of all threads, of selected traces, or both."""
        return self.enabled or self.snapshot_enabled

    @property
    def snapshot_period_ns(self) -> int:
        """Nanoseconds between two samples of selected traces."""
        return self.snapshot_interval_ms * 1_000_000

    @property
    def runs(self) -> bool:
        """Whether there is anything to start."""
        return self.samples or self.publishes_correlation or self.publishes_labels

    def _wants(self, choice: str) -> bool:
        return self.enabled if choice.lower() == "auto" else choice.lower() == "true"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the environment says.

    Attributes:
        config: the settings in effect.
        endpoint: where records go.
        sdk_disabled: True if ``OTEL_SDK_DISABLED`` switches all of OpenTelemetry off.
        origins: `Config` field → where its value came from (``default`` or the variable's name).
        warnings: one sentence for each value that could not be used.
        transport: headers, timeout, compression and certificates of the exports.
        described: the resource attributes that the environment gives the service (``OTEL_SERVICE_NAME``,
            ``OTEL_RESOURCE_ATTRIBUTES``), for the time before a `TracerProvider` says more.
    """

    config: Config
    endpoint: Endpoint
    sdk_disabled: bool
    origins: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    transport: Transport = field(default_factory=Transport)
    described: Mapping[str, str] = field(default_factory=dict)


_NOT_BUILT = {
    "memory_enabled": (True, "memory profiling is not part of this version; the setting has no effect"),
}


def _not_built(config: Config) -> list[str]:
    return [
        f"{_setting_of(name).name}={str(value).lower()}: {message}"
        for name, (value, message) in _NOT_BUILT.items()
        if getattr(config, name) == value
    ]


def _without_effect(config: Config, origins: Mapping[str, str]) -> list[str]:
    if config.data_format != "text" or "data_format" not in origins or not config.aggregates:
        return []
    return [
        f"SPLUNK_PROFILER_DATA_FORMAT=text has no effect: SPLUNK_PROFILER_OUTPUT={config.output} takes profiles in"
        " pprof's format only, which are sent instead"
    ]


def environment() -> dict[str, str]:
    """A copy of the process's environment, for a launcher that hands one on to another process."""
    return dict(os.environ)


def from_env(env: Mapping[str, str] | None = None) -> Resolved:
    """The settings that `env` (default: the process's environment) asks for. Never raises.

    A variable that is empty or blank counts as not set (OpenTelemetry's rule).
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    for setting in SETTINGS:
        text = env.get(setting.name, "").strip()
        if not text:
            continue
        try:
            values[setting.field] = setting.parse(text)
            origins[setting.field] = setting.name
        except ConfigError as error:
            instead = _next_endpoint(env) if setting.field == "logs_endpoint" else _default_text(setting)
            warnings.append(f"{setting.name}={_shown(text)} is not usable: {error}; {instead} is used instead")
    return _resolve(Config(**values), env, origins, warnings)


def from_config(config: Config, env: Mapping[str, str] | None = None) -> Resolved:
    """As `from_env`, for settings that were made in code; the endpoint's defaults still come from `env`."""
    origins = {item.name: "Config" for item in fields(config) if getattr(config, item.name) != item.default}
    return _resolve(config, os.environ if env is None else env, origins, [])


def _shown(value: object) -> str:
    return repr(shown(value) if isinstance(value, str) else value)


def _next_endpoint(env: Mapping[str, str]) -> str:
    general = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    return f"OTEL_EXPORTER_OTLP_ENDPOINT={shown(general)}" if general else DEFAULT_ENDPOINT


def _default_text(setting: Setting) -> str:
    default = Config.__dataclass_fields__[setting.field].default
    if default is None:
        return "the default"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _resolve(config: Config, env: Mapping[str, str], origins: dict[str, str], warnings: list[str]) -> Resolved:
    if env.get("SPLUNK_PROFILER_ENABLED", "").strip().lower() == "false":  # whoever runs the service has the last word
        if config.samples:
            warnings = [*warnings, "SPLUNK_PROFILER_ENABLED=false: the profiler stays off, whatever else asks for it"]
        config = replace(config, enabled=False, snapshot_enabled=False)
    warnings = warnings + _not_built(config) + _without_effect(config, origins)
    sdk_disabled = _boolean(env, "OTEL_SDK_DISABLED", warnings)
    insecure = _boolean(env, "OTEL_EXPORTER_OTLP_INSECURE", warnings)
    candidates = [
        (origins.get("logs_endpoint", "SPLUNK_PROFILER_LOGS_ENDPOINT"), config.logs_endpoint or ""),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()),
    ]
    endpoint = parse_endpoint(DEFAULT_ENDPOINT, setting="default")
    for name, url in candidates:
        if not url:
            continue
        try:
            endpoint = parse_endpoint(url, insecure_by_default=insecure, setting=name)
            break
        except ConfigError as error:
            warnings.append(f"{name}={_shown(url)} is not usable: {error}; {DEFAULT_ENDPOINT} is used instead")
    transport, more = parse_transport(env)
    warnings += more if config.samples else ()
    return Resolved(config, endpoint, sdk_disabled, origins, tuple(warnings), transport, _described(env))


def _described(env: Mapping[str, str]) -> dict[str, str]:
    """OpenTelemetry's own rules: ``key=value`` pairs, percent-encoded; ``OTEL_SERVICE_NAME`` goes before them."""
    pairs = (item.partition("=") for item in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if "=" in item)
    attributes = {key.strip(): unquote(value.strip()) for key, _, value in pairs}
    name = env.get("OTEL_SERVICE_NAME", "").strip()
    return {**attributes, "service.name": name} if name else attributes


def _boolean(env: Mapping[str, str], name: str, warnings: list[str]) -> bool:
    text = env.get(name, "").strip()
    try:
        return bool(text) and parse_boolean(text)
    except ConfigError as error:
        warnings.append(f"{name}={text!r} is not usable: {error}; false is used instead")
        return False
