"""Every setting of the profiler, parsed strictly: the only reader of the environment.

Owns `Config`. A wrong value never raises: it becomes one warning that names the setting, the value and what is used
instead. Where it says where records go, nothing is: no samples are taken then. A `Config` made in code is checked when
it is made and does raise. Runs on the caller's thread; `settings` is the table, `parsers` the forms of
values, `otlp_transport` the part for connections. Imports nothing else of ours.

Specification: Splunk profiling conventions, "Activation", "Call Stack Sampling" and "Call Stack Ingest"; Elastic
universal profiling integration, "Configuration Options".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.otlp_transport import parse as parse_transport
from splunk_profiler.config.parsers import (
    Agent,
    Collector,
    ConfigError,
    Destination,
    Endpoint,
    NoDestination,
    parse_attributes,
    parse_boolean,
    parse_destination,
    parse_endpoint,
    parse_tags,
    quote_redacted,
)
from splunk_profiler.config.settings import SETTINGS, Setting, setting_for_field

DEFAULT_ENDPOINT = "https://localhost:4317"
_GENERAL_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OPTIONAL_FIELD_TYPES: Mapping[str, type] = {
    "logs_endpoint": str,
    "logs_headers": str,
    "export_interval_ms": int,
    "socket_directory": str,
}
_DESTINATION_FIELDS = ("output", "logs_endpoint")
_DEFAULT_SAMPLES_INTERVAL_MS = 1_000
_DEFAULT_PROFILES_INTERVAL_MS = 10_000


@dataclass(frozen=True, slots=True)
class Config:
    """The profiler's settings; made once, in force for the life of the process.

    Attributes:
        enabled: whether `splunk_profiler.start()` starts anything (``SPLUNK_PROFILER_ENABLED``).
        call_stack_interval_ms: milliseconds between two samples, 1 to 3,600,000.
        max_overhead: percent of one core that the profiler itself may use, above 0 and at most 100, or ``off``; it
            samples less often rather than use more.
        logs_endpoint: where records go, as ``http(s)://host:port``, ``dns:host:port`` or ``unix:path``; None follows
            ``OTEL_EXPORTER_OTLP_ENDPOINT``, then ``https://localhost:4317``.
        logs_headers: headers that go with the records, ``name=value,name=value``; None follows
            ``OTEL_EXPORTER_OTLP_LOGS_HEADERS``, then, if the host is the same, ``OTEL_EXPORTER_OTLP_HEADERS``.
        export_interval_ms: milliseconds that samples are gathered before they are sent, 1 to 600,000; None is 1,000
            for ``text``, 10,000 for ``pprof-gzip-base64`` and files, 60,000 for a Datadog agent.
        max_stack_depth: frames kept of a stack, counted from the leaf, 1 to 65,536.
        include_internal_stacks: also send the threads of the profiler, the OpenTelemetry SDK and gRPC.
        tracing_stacks_only: send only samples that were taken inside a span.
        data_format: ``text``, a record for each sample, or ``pprof-gzip-base64``, one for all of an export interval.
        output: ``otlp`` (a collector), ``file:DIRECTORY``, or ``datadog:`` and the address of a Datadog agent,
            ``http(s)://HOST:PORT`` or ``unix:///SOCKET``; the last two take profiles only, whatever `data_format` says.
        gc_events: whether collections of garbage are sampled, with their durations, where profiles are sent: ``true``,
            ``false`` or ``auto`` (with the native walker).
        span_runtime_id: whether the application's spans carry the id of the process: ``true``, ``false`` or ``auto``
            (with a Datadog agent).
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
    logs_headers: str | None = field(default=None, repr=False)
    export_interval_ms: int | None = None
    max_stack_depth: int = 1024
    include_internal_stacks: bool = False
    tracing_stacks_only: bool = False
    data_format: str = "text"
    output: str = "otlp"
    gc_events: str = "auto"
    span_runtime_id: str = "auto"
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
            expected_type = type(item.default) if item.default is not None else _OPTIONAL_FIELD_TYPES[item.name]
            setting = setting_for_field(item.name)
            try:
                if type(value) is not expected_type:
                    raise ConfigError(f"not of type {expected_type.__name__}")
                setting.parse(str(value))
            except ConfigError as error:
                raise ConfigError(f"Config({item.name}={setting.quote_redacted(value)}): {error}") from None

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
        default_ms = _DEFAULT_PROFILES_INTERVAL_MS if self.sends_profiles else _DEFAULT_SAMPLES_INTERVAL_MS
        return (self.export_interval_ms or self.destination.default_export_interval_ms or default_ms) * 1_000_000

    @property
    def destination(self) -> Destination:
        """What takes the records."""
        return parse_destination(self.output)

    @property
    def sends_profiles(self) -> bool:
        """Whether profiles are sent, not samples."""
        return self.data_format != "text" or not self.destination.accepts_samples

    def samples_gc(self, *, native: bool) -> bool:
        """Whether collections of garbage are sampled, with the native walker or the portable one."""
        choice = self.gc_events.lower()
        return self.sends_profiles and (native if choice == "auto" else choice == "true")

    @property
    def adds_span_runtime_id(self) -> bool:
        """Whether the application's spans carry the id of the process."""
        choice = self.span_runtime_id.lower()
        return isinstance(self.destination, Agent) if choice == "auto" else choice == "true"

    @property
    def publishes_correlation(self) -> bool:
        """Whether Elastic's ABI is published; `correlation` may ask for it with sampling off."""
        return self._resolve_auto(self.correlation)

    @property
    def publishes_labels(self) -> bool:
        """Whether the Custom Labels ABI is published; `custom_labels` may ask for it with sampling off."""
        return self._resolve_auto(self.custom_labels)

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

    def _resolve_auto(self, choice: str) -> bool:
        return self.enabled if choice.lower() == "auto" else choice.lower() == "true"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the environment says.

    Attributes:
        config: the settings in effect.
        destination: what takes the records.
        endpoint: where a `Collector` is; None if a setting for it cannot be used.
        sdk_disabled: True if ``OTEL_SDK_DISABLED`` switches all of OpenTelemetry off.
        origins: `Config` field → where its value came from (``default`` or the variable's name).
        warnings: one sentence for each value that could not be used.
        transport: headers, timeout, compression and certificates of the exports.
        resource_attributes: the resource attributes that the environment gives the service (``OTEL_SERVICE_NAME``,
            ``OTEL_RESOURCE_ATTRIBUTES``), for the time before a `TracerProvider` says more.
        tags: what ``DD_TAGS`` says.
    """

    config: Config
    destination: Destination | NoDestination
    endpoint: Endpoint | None
    sdk_disabled: bool
    origins: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    transport: Transport = field(default_factory=Transport)
    resource_attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> bool:
        """Whether stacks are sampled: it is asked for, and there is somewhere to send to."""
        return self.config.samples and not isinstance(self.destination, NoDestination)

    @property
    def runs(self) -> bool:
        """Whether there is anything to start."""
        return self.samples or self.config.publishes_correlation or self.config.publishes_labels


_NOT_IMPLEMENTED = {
    "memory_enabled": (True, "memory profiling is not part of this version; the setting has no effect"),
}


def _not_implemented_warnings(config: Config) -> list[str]:
    return [
        f"{setting_for_field(name).name}={str(value).lower()}: {message}"
        for name, (value, message) in _NOT_IMPLEMENTED.items()
        if getattr(config, name) == value
    ]


def _no_effect_warnings(config: Config, origins: Mapping[str, str]) -> list[str]:
    if config.data_format != "text" or "data_format" not in origins or not config.sends_profiles:
        return []
    return [
        "SPLUNK_PROFILER_DATA_FORMAT=text has no effect:"
        f" SPLUNK_PROFILER_OUTPUT={quote_redacted(config.output)} takes profiles"
        " in pprof's format only, which are sent instead"
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
    destination_errors: list[str] = []
    for setting in SETTINGS:
        text = env.get(setting.name, "").strip()
        if not text:
            continue
        try:
            values[setting.field] = setting.parse(text)
            origins[setting.field] = setting.name
        except ConfigError as error:
            if setting.field in _DESTINATION_FIELDS:
                destination_errors.append(_unusable_destination(setting.name, text, error))
            else:
                wrong = f"{setting.name}={setting.quote_redacted(text)} is not usable: {error}"
                warnings.append(f"{wrong}; {_format_default(setting)} is used instead")
    return _resolve(Config(**values), env, origins, warnings, destination_errors)


def from_config(config: Config, env: Mapping[str, str] | None = None) -> Resolved:
    """As `from_env`, for settings that were made in code; the endpoint's defaults still come from `env`."""
    origins = {item.name: "Config" for item in fields(config) if getattr(config, item.name) != item.default}
    return _resolve(config, os.environ if env is None else env, origins, [], [])


def _unusable_destination(name: str, text: str, error: ConfigError) -> str:
    return (
        f"{name}={quote_redacted(text)} is not usable: {error}; no samples are taken, because they can be sent nowhere"
    )


def _format_default(setting: Setting) -> str:
    default = Config.__dataclass_fields__[setting.field].default
    if default is None:
        return "the default"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _resolve(
    config: Config, env: Mapping[str, str], origins: dict[str, str], warnings: list[str], destination_errors: list[str]
) -> Resolved:
    if env.get("SPLUNK_PROFILER_ENABLED", "").strip().lower() == "false":  # whoever runs the service has the last word
        if config.samples:
            warnings = [*warnings, "SPLUNK_PROFILER_ENABLED=false: the profiler stays off, whatever else asks for it"]
        config = replace(config, enabled=False, snapshot_enabled=False)
    warnings = warnings + _not_implemented_warnings(config) + _no_effect_warnings(config, origins)
    sdk_disabled = bool(_read_boolean(env, "OTEL_SDK_DISABLED", warnings))
    destination, endpoint = config.destination, None
    transport = Transport()
    if not isinstance(destination, Collector):
        destination_errors = []  # an endpoint that is not needed cannot be wrong
    elif not destination_errors:
        endpoint = _resolve_endpoint(
            config, env, origins, _read_boolean(env, "OTEL_EXPORTER_OTLP_INSECURE", warnings), destination_errors
        )
    if endpoint is not None:
        is_other_host = _sends_to_other_host(endpoint, env)
        transport, transport_warnings = parse_transport(env, config.logs_headers or "", is_other_host=is_other_host)
        warnings += transport_warnings if config.samples else ()
    name = env.get("OTEL_SERVICE_NAME", "").strip()
    resource_attributes = parse_attributes(env.get("OTEL_RESOURCE_ATTRIBUTES", "")) | (
        {"service.name": name} if name else {}
    )
    tags = parse_tags(env.get("DD_TAGS", ""))
    resolved_destination = NoDestination("; ".join(destination_errors)) if destination_errors else destination
    all_warnings = (*destination_errors, *warnings)
    return Resolved(
        config,
        resolved_destination,
        endpoint,
        sdk_disabled,
        origins,
        all_warnings,
        transport,
        resource_attributes,
        tags,
    )


def _resolve_endpoint(
    config: Config,
    env: Mapping[str, str],
    origins: Mapping[str, str],
    insecure: bool | None,
    destination_errors: list[str],
) -> Endpoint | None:
    """The first that is set; if that one cannot be used, none, and one more line in `destination_errors`."""
    general = env.get(_GENERAL_ENDPOINT, "").strip()
    if config.logs_endpoint:
        name, text = origins.get("logs_endpoint", "SPLUNK_PROFILER_LOGS_ENDPOINT"), config.logs_endpoint
    else:
        name, text = (_GENERAL_ENDPOINT, general) if general else ("default", DEFAULT_ENDPOINT)
    try:
        return parse_endpoint(text, insecure=insecure, setting=name)
    except ConfigError as error:
        destination_errors.append(_unusable_destination(name, text, error))
        return None


def _sends_to_other_host(endpoint: Endpoint, env: Mapping[str, str]) -> bool:
    """Whether records go to another host than the general endpoint, whose headers and credentials are its own."""
    try:
        general = parse_endpoint(env.get(_GENERAL_ENDPOINT, "").strip() or DEFAULT_ENDPOINT)
    except ConfigError:
        return True
    return endpoint.normalized_host != general.normalized_host


def _read_boolean(env: Mapping[str, str], name: str, warnings: list[str]) -> bool | None:
    """None if it is not set."""
    text = env.get(name, "").strip()
    try:
        return parse_boolean(text) if text else None
    except ConfigError as error:
        warnings.append(f"{name}={quote_redacted(text)} is not usable: {error}; false is used instead")
        return None
