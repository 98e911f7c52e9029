"""The settings of the profiler, parsed strictly; the only reader of the environment.

Owns `Config`. A wrong variable never raises: it becomes one warning that names the setting, the
value and its replacement. A wrong destination has no replacement: no samples are taken. A `Config`
made in code raises. Runs on the caller's thread; imports nothing else of ours.

Specification: Splunk profiling conventions, "Activation", "Call Stack Sampling" and "Call Stack Ingest"; Elastic
universal profiling integration, "Configuration Options".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from splunk_profiler.config.otlp_transport import Transport, general_endpoint, parse_transport
from splunk_profiler.config.parsers import (
    Collector,
    ConfigError,
    DatadogAgent,
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
from splunk_profiler.config.settings import SETTINGS, Setting, select_variables

_FIELD_TYPES: Mapping[str, type] = {"bool": bool, "float": float, "int": int, "str": str}


@dataclass(frozen=True, slots=True)
class Config:
    """The profiler's settings, constant for the life of the process.

    Attributes:
        enabled: True if all threads are sampled (``SPLUNK_PROFILER_ENABLED``).
        call_stack_interval_ms: milliseconds between two samples, 1 to 3,600,000.
        max_overhead: percent of one core that the profiler may use, above 0 and at most 100, or ``off``;
            above it, the profiler samples less often.
        logs_endpoint: destination of the records: ``http(s)://host:port``, ``dns:host:port`` or ``unix:path``;
            None follows ``OTEL_EXPORTER_OTLP_ENDPOINT``, then ``https://localhost:4317``.
        logs_headers: headers of the records, ``name=value,name=value``; None follows
            ``OTEL_EXPORTER_OTLP_LOGS_HEADERS``, then, on the same host, ``OTEL_EXPORTER_OTLP_HEADERS``.
        export_interval_ms: milliseconds between two exports, 1 to 600,000; None is 1,000 for
            ``text``, 10,000 for ``pprof-gzip-base64`` and files, 60,000 for a Datadog agent.
        max_stack_depth: frames kept of a stack, counted from the leaf, 1 to 65,536.
        include_internal_stacks: True to send the threads of the profiler, the SDK and gRPC as well.
        tracing_stacks_only: True to send only samples that were taken inside a span.
        data_format: ``text``, one record a sample, or ``pprof-gzip-base64``, one record an export.
        output: ``otlp`` (a collector), ``file:DIRECTORY``, ``stream:DIRECTORY``, or ``datadog:`` and
            the address of an agent, ``http(s)://HOST:PORT`` or ``unix:///SOCKET``. Directories take profiles
            and streams (for ``splunk-profiler replay``), agents profiles, regardless of `data_format`.
        gc_events: sampling of garbage collections where profiles are sent: ``true``, ``false`` or
            ``auto`` (with the native walker).
        max_tasks: suspended asyncio tasks that are sampled at a time where profiles are sent, 0 to 1,000.
        loop_blocked_ms: milliseconds for which a callback holds an event loop before that is an event,
            where profiles are sent, at most 600,000; 0: never.
        exceptions_enabled: True to sample raised exceptions where profiles are sent, from CPython 3.12 on.
        exceptions_interval: mean number of exceptions for a sample, 1 to 1,000,000; more where there are many.
        span_runtime_id: the id of the process on the application's spans: ``true``, ``false`` or
            ``auto`` (with a Datadog agent).
        walker: ``auto`` (native where it is available), ``native`` or ``portable``.
        correlation: publishing of each thread's context by Elastic's ABI: ``true``, ``false`` or
            ``auto`` (as `enabled`).
        socket_directory: directory of the socket for host profilers; None is the system's directory
            for temporary files.
        correlation_buffer_size: ended transactions that may wait for messages of host profilers,
            1 to 1,000,000.
        custom_labels: publishing by the Custom Labels ABI: ``true``, ``false`` or ``auto``.
        preload: loading of the labels' library by ``splunk-profiler run``: ``true`` (also in all
            child processes), ``false`` or ``auto`` (in the command alone).
        exporter: where samples are made of captures and exported: a ``process`` beside this one, a
            ``thread`` of it, or ``auto`` (the process where it can be).
        memory_enabled: True to sample what the process allocates, and in profiles what of it is in use.
        memory_sample_bytes: mean distance of two samples of allocations, in bytes, 1,024 to 1,073,741,824.
        snapshot_enabled: True if selected traces are profiled, also with `enabled` false.
        snapshot_interval_ms: milliseconds between two samples of a selected trace, 1 to 3,600,000.
        snapshot_probability: share of traces that are selected, 0 to 1.

    Raises:
        ConfigError: a field has a value that its setting does not accept.
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
    max_tasks: int = 64
    loop_blocked_ms: int = 100
    exceptions_enabled: bool = False
    exceptions_interval: int = 1
    span_runtime_id: str = "auto"
    walker: str = "auto"
    correlation: str = "auto"
    socket_directory: str | None = None
    correlation_buffer_size: int = 8096
    custom_labels: str = "auto"
    preload: str = "auto"
    exporter: str = "auto"
    memory_enabled: bool = False
    memory_sample_bytes: int = 524_288
    snapshot_enabled: bool = False
    snapshot_interval_ms: int = 10
    snapshot_probability: float = 0.01

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None and item.default is None:
                continue
            expected_type = _FIELD_TYPES[str(item.type).removesuffix(" | None")]
            setting = next(setting for setting in SETTINGS if setting.field == item.name)
            try:
                if type(value) is not expected_type:
                    example = "" if item.default is None else f", as {item.default!r} is"
                    raise ConfigError(f"not of type {expected_type.__name__}{example}")
                setting.parse(str(value))
            except ConfigError as error:
                raise ConfigError(f"Config({item.name}={setting.quote_redacted(value)}): {error}") from None

    @property
    def period_ns(self) -> int:
        """Nanoseconds between two samples."""
        return self.call_stack_interval_ms * 1_000_000

    @property
    def periods_ns(self) -> tuple[int, int]:
        """Periods of captures of all threads and of those of selected traces; 0: there are none."""
        return self.period_ns * self.enabled, self.snapshot_interval_ms * 1_000_000 * self.snapshot_enabled

    @property
    def overhead_limit(self) -> float | None:
        """Share of one core that the profiler may use; None if there is no limit."""
        return None if self.max_overhead.lower() == "off" else float(self.max_overhead) / 100

    @property
    def export_interval_ns(self) -> int:
        """Nanoseconds between two exports."""
        default_ms = 10_000 if self.sends_profiles else 1_000
        return (self.export_interval_ms or self.destination.default_export_interval_ms or default_ms) * 1_000_000

    @property
    def destination(self) -> Destination:
        """Destination of the records."""
        return parse_destination(self.output)

    @property
    def counts_idle_threads(self) -> bool:
        """True if idle threads are counted, not sampled: not for text, and not if samples are chosen by span."""
        return self.sends_profiles and not self.tracing_stacks_only

    @property
    def sends_profiles(self) -> bool:
        """True if profiles are sent, not samples."""
        return self.data_format != "text" or not self.destination.accepts_samples

    def samples_gc(self, *, native: bool) -> bool:
        """Return True if garbage collections are sampled with the native or the portable walker."""
        return self.sends_profiles and _resolve_auto(self.gc_events, native)

    @property
    def samples_exceptions(self) -> bool:
        """True if raised exceptions are sampled, where the interpreter and the walker can."""
        return self.enabled and self.sends_profiles and self.exceptions_enabled

    @property
    def adds_span_runtime_id(self) -> bool:
        """True if the application's spans carry the id of the process."""
        return _resolve_auto(self.span_runtime_id, isinstance(self.destination, DatadogAgent))

    @property
    def publishes_correlation(self) -> bool:
        """True if Elastic's ABI is published, possibly with sampling off."""
        return _resolve_auto(self.correlation, self.enabled)

    @property
    def publishes_labels(self) -> bool:
        """True if the Custom Labels ABI is published, possibly with sampling off."""
        return _resolve_auto(self.custom_labels, self.enabled)

    @property
    def samples(self) -> bool:
        """True if stacks are sampled: of all threads, of selected traces, or both."""
        return self.enabled or self.snapshot_enabled

    def shareable(self) -> dict[str, Any]:
        """Return the fields that are not default, without secrets and destinations; `Config` takes them."""
        private = {setting.field for setting in SETTINGS if setting.is_secret} | {"logs_endpoint", "output"}
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            item.name: values[item.name]
            for item in fields(self)
            if item.name not in private and values[item.name] != item.default
        }

    @property
    def runs(self) -> bool:
        """True if the settings start anything."""
        return self.samples or self.publishes_correlation or self.publishes_labels


class Resolved(NamedTuple):
    """The settings in effect, with what else the environment defines.

    Attributes:
        endpoint: address of a `Collector`; None if the setting for it is not usable.
        sdk_disabled: True if ``OTEL_SDK_DISABLED`` switches all of OpenTelemetry off.
        origins: `Config` field → origin of its value: a variable or ``Config``; none for a default.
        warnings: one sentence for each value that is not usable.
        resource_attributes: attributes from ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES``,
            for the time before there is a `TracerProvider`.
        tags: from ``DD_TAGS``.
        variables: those of the environment that all this may come from, secrets included.
    """

    config: Config
    destination: Destination | NoDestination
    endpoint: Endpoint | None
    sdk_disabled: bool
    origins: Mapping[str, str]
    warnings: tuple[str, ...]
    transport: Transport
    resource_attributes: Mapping[str, str]
    tags: Mapping[str, str]
    variables: Mapping[str, str]

    def __repr__(self) -> str:
        """Return a text without secrets."""
        return f"Resolved(config={self.config!r})"

    @property
    def samples(self) -> bool:
        """True if the settings ask for samples and the destination is usable."""
        return self.config.samples and not isinstance(self.destination, NoDestination)

    @property
    def runs(self) -> bool:
        """True if the settings start anything."""
        return self.samples or self.config.publishes_correlation or self.config.publishes_labels


def _resolve_auto(choice: str, automatic: bool) -> bool:
    return automatic if choice.lower() == "auto" else choice.lower() == "true"


def environment() -> dict[str, str]:
    """Return a copy of the process's environment, for a launcher that passes it on."""
    return dict(os.environ)


def from_env(env: Mapping[str, str] | None = None, *, directory: str = "") -> Resolved:
    """Resolve the settings in `env`, by default the process's environment. Never raises.

    Paths start from `directory`, by default the working directory. An empty or blank variable counts as not set
    (OpenTelemetry's rule).
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
            if setting.field in ("output", "logs_endpoint"):
                destination_errors.append(_unusable_destination(setting.name, text, error))
            else:
                wrong = f"{setting.name}={setting.quote_redacted(text)} is not usable: {error}"
                warnings.append(f"{wrong}; {_format_default(setting)} is used instead")
    return _resolve(Config(**values), env, origins, warnings, destination_errors, directory=directory)


def from_config(
    config: Config, env: Mapping[str, str] | None = None, *, origins: dict[str, str] | None = None
) -> Resolved:
    """Resolve settings made in code, or those of known `origins`; defaults of the connection still come from `env`."""
    if origins is None:
        changed = [one for one in fields(config) if getattr(config, one.name) != one.default]
        origins = {one.name: f"Config({one.name})" for one in changed}
    return _resolve(config, os.environ if env is None else env, origins, [], [])


def _unusable_destination(name: str, text: str, error: ConfigError) -> str:
    return (
        f"{name}={quote_redacted(text)} is not usable: {error}; no samples are taken, because they can be sent nowhere"
    )


def _find_settings_without_effect(config: Config, origins: Mapping[str, str]) -> list[str]:
    """Return a sentence for each; `origins` has the fields that are set."""
    found = []
    if config.exceptions_enabled and config.samples and not config.samples_exceptions:
        needed = "SPLUNK_PROFILER_DATA_FORMAT=pprof-gzip-base64" if config.enabled else "SPLUNK_PROFILER_ENABLED=true"
        found.append(f"SPLUNK_PROFILER_EXCEPTIONS_ENABLED=true has no effect without {needed}")
    if config.data_format == "text" and "data_format" in origins and config.sends_profiles:
        output = f"SPLUNK_PROFILER_OUTPUT={quote_redacted(config.output)}"
        found.append(f"SPLUNK_PROFILER_DATA_FORMAT=text has no effect: {output} takes profiles, which are sent instead")
    return found


def _format_default(setting: Setting) -> str:
    default = Config.__dataclass_fields__[setting.field].default
    return "the default" if default is None else str(default).lower()


def _resolve(
    config: Config,
    env: Mapping[str, str],
    origins: dict[str, str],
    warnings: list[str],
    destination_errors: list[str],
    *,
    directory: str = "",
) -> Resolved:
    with suppress(OSError):  # it was removed
        directory = directory or os.getcwd()  # noqa: PTH109  # `config` does without pathlib
    if env.get("SPLUNK_PROFILER_ENABLED", "").strip().lower() == "false":  # the operator overrides the code
        if config.samples:
            warnings = [*warnings, "SPLUNK_PROFILER_ENABLED=false: the profiler stays off, whatever else asks for it"]
        config = replace(config, enabled=False, snapshot_enabled=False)
    warnings = warnings + _find_settings_without_effect(config, origins)
    sdk_disabled = bool(_read_boolean(env, "OTEL_SDK_DISABLED", warnings))
    destination, endpoint, transport = config.destination, None, Transport()
    if not isinstance(destination, Collector):
        destination_errors = []  # no endpoint is needed
    elif not destination_errors:
        insecure = _read_boolean(env, "OTEL_EXPORTER_OTLP_INSECURE", warnings)
        endpoint = _resolve_endpoint(config, env, origins, insecure, destination_errors, directory=directory)
    if endpoint is not None:
        transport, transport_warnings = parse_transport(env, endpoint, config.logs_headers or "", directory=directory)
        warnings += transport_warnings if config.samples else ()
    resource_attributes = parse_attributes(env.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := env.get("OTEL_SERVICE_NAME", "").strip():
        resource_attributes["service.name"] = name
    return Resolved(
        config=config,
        destination=NoDestination("; ".join(destination_errors)) if destination_errors else destination,
        endpoint=endpoint,
        sdk_disabled=sdk_disabled,
        origins=origins,
        warnings=(*destination_errors, *warnings),
        transport=transport,
        resource_attributes=resource_attributes,
        tags=parse_tags(env.get("DD_TAGS", "")),
        variables=select_variables(env),
    )


def _resolve_endpoint(
    config: Config,
    env: Mapping[str, str],
    origins: Mapping[str, str],
    insecure: bool | None,
    destination_errors: list[str],
    *,
    directory: str,
) -> Endpoint | None:
    """Return the first endpoint that is set; add to `destination_errors` if it is not usable."""
    own = origins.get("logs_endpoint", "SPLUNK_PROFILER_LOGS_ENDPOINT"), config.logs_endpoint or ""
    name, text = own if config.logs_endpoint else general_endpoint(env)
    try:
        return parse_endpoint(text, insecure=insecure, setting=name, directory=directory)
    except ConfigError as error:
        destination_errors.append(_unusable_destination(name, text, error))
        return None


def _read_boolean(env: Mapping[str, str], name: str, warnings: list[str]) -> bool | None:
    text = env.get(name, "").strip()
    try:
        return parse_boolean(text) if text else None
    except ConfigError as error:
        warnings.append(f"{name}={quote_redacted(text)} is not usable: {error}; false is used instead")
        return None
