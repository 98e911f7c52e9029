"""Settings: accepted values, refused values and their warnings."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from splunk_profiler.config import Config, from_config, from_env
from splunk_profiler.config.parsers import ConfigError, Endpoint, parse_endpoint
from splunk_profiler.config.settings import SETTINGS

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_nothing_set_means_off_one_second_and_the_default_endpoint() -> None:
    resolved = from_env({})
    assert resolved.config == Config()
    assert not resolved.config.enabled
    assert resolved.config.period_ns == 1_000_000_000
    assert resolved.endpoint == Endpoint("https://localhost:4317", "localhost:4317", True, "default")
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "abc", "1000"),
        ("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "0", "1000"),
        ("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "-5", "1000"),
        ("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "1e99", "1000"),
        ("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "9" * 300, "1000"),
        ("SPLUNK_PROFILER_CALL_STACK_INTERVAL", "٣", "1000"),
        ("SPLUNK_PROFILER_ENABLED", "maybe", "false"),
        ("SPLUNK_PROFILER_ENABLED", "1", "false"),
        ("SPLUNK_PROFILER_INCLUDE_INTERNAL_STACKS", "yes", "false"),
        ("SPLUNK_PROFILER_MAX_STACK_DEPTH", "0", "1024"),
        ("SPLUNK_PROFILER_EXPORT_INTERVAL", "-1", "the default"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "0", "2"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "0.0", "2"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "-1", "2"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "100.1", "2"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "2%", "2"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "1e1", "2"),
        ("SPLUNK_PROFILER_MAX_OVERHEAD", "none", "2"),
        ("SPLUNK_PROFILER_DATA_FORMAT", "json", "text"),
        ("SPLUNK_PROFILER_WALKER", "fast", "auto"),
        ("SPLUNK_SNAPSHOT_SELECTION_PROBABILITY", "2", "0.01"),
        ("SPLUNK_SNAPSHOT_SELECTION_PROBABILITY", "1e1", "0.01"),
        ("SPLUNK_SNAPSHOT_SELECTION_PROBABILITY", "nan", "0.01"),
        ("OTEL_SDK_DISABLED", "perhaps", "false"),
        ("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED", "on", "auto"),
        ("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR", "run/sockets", "the default"),
        ("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR", "/run/../tmp", "the default"),
        ("SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED", "1", "auto"),
    ],
)
def test_wrong_value_gives_one_line_with_setting_value_and_replacement(name: str, value: str, used: str) -> None:
    resolved = from_env({name: value})
    assert resolved.config == Config()
    assert resolved.endpoint == Endpoint("https://localhost:4317", "localhost:4317", True, "default")
    assert not resolved.sdk_disabled
    (warning,) = resolved.warnings
    assert f"{name}={value!r}" in warning
    assert f"{used} is used instead" in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://me:sesame@agent:8126", "datadog:http://***@agent:8126"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://me:se/sesame@x@agent:8126", "datadog:http://***@agent:8126"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://agent:8126?key=sesame", "datadog:http://agent:8126?***"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:me:sesame@agent:8126", "***@agent:8126"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:https://me:sesame@agent", "datadog:https://***@agent"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "https://sesame@host:4317", "https://***@host:4317"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "dns:///me:sesame@host:4317", "dns://***@host:4317"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "me:sesame@host:4317", "***@host:4317"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "me:sesame@host:4317//v1/logs", "***@host:4317//v1/logs"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "http:/me:sesame@host:4317//", "***@host:4317//"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "host:4317?key=sesame//x", "host:4317?***"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:sesame@host:4317", "https://***@host:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:sesame#1@host:4317", "https://***@host:4317"),
    ],
)
def test_a_password_in_an_address_is_in_no_message(name: str, value: str, said: str) -> None:
    (warning,) = from_env({name: value}).warnings
    assert f"{name}={said!r}" in warning
    assert "sesame" not in warning


def test_password_in_an_address_is_in_no_warning_and_no_exception() -> None:
    general = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:sesame@host:4317"}
    assert "sesame" not in "".join(from_env({"SPLUNK_PROFILER_LOGS_ENDPOINT": "htp:/x", **general}).warnings)
    assert parse_endpoint("https://h:1/?key=sesame").url == "https://h:1/?***"
    with pytest.raises(ConfigError) as raised:
        Config(output="datadog:http://me:sesame@agent")
    assert "sesame" not in str(raised.value)


def test_every_setting_is_read_from_its_variable() -> None:
    values = {
        "SPLUNK_PROFILER_ENABLED": ("TRUE", True),
        "SPLUNK_PROFILER_LOGS_ENDPOINT": ("http://h:1", "http://h:1"),
        "SPLUNK_PROFILER_LOGS_HEADERS": ("a=b", "a=b"),
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL": ("10", 10),
        "SPLUNK_PROFILER_EXPORT_INTERVAL": ("500", 500),
        "SPLUNK_PROFILER_MAX_OVERHEAD": ("0.5", "0.5"),
        "SPLUNK_PROFILER_MAX_STACK_DEPTH": ("64", 64),
        "SPLUNK_PROFILER_INCLUDE_INTERNAL_STACKS": ("true", True),
        "SPLUNK_PROFILER_TRACING_STACKS_ONLY": ("True", True),
        "SPLUNK_PROFILER_DATA_FORMAT": ("pprof-gzip-base64", "pprof-gzip-base64"),
        "SPLUNK_PROFILER_OUTPUT": ("file:/var/profiles", "file:/var/profiles"),
        "SPLUNK_PROFILER_GC_EVENTS_ENABLED": ("FALSE", "false"),
        "SPLUNK_PROFILER_MAX_TASKS": ("16", 16),
        "SPLUNK_PROFILER_LOOP_BLOCKED_MS": ("250", 250),
        "SPLUNK_PROFILER_EXCEPTIONS_ENABLED": ("true", True),
        "SPLUNK_PROFILER_EXCEPTIONS_INTERVAL": ("100", 100),
        "SPLUNK_PROFILER_SPAN_RUNTIME_ID_ENABLED": ("TRUE", "true"),
        "SPLUNK_PROFILER_WALKER": ("portable", "portable"),
        "SPLUNK_PROFILER_EXPORTER": ("thread", "thread"),
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": ("FALSE", "false"),
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR": ("/run/sockets", "/run/sockets"),
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE": ("100", 100),
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": ("True", "true"),
        "SPLUNK_PROFILER_PRELOAD_ENABLED": ("FALSE", "false"),
        "SPLUNK_PROFILER_MEMORY_ENABLED": ("true", True),
        "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": ("65536", 65_536),
        "SPLUNK_SNAPSHOT_PROFILER_ENABLED": ("true", True),
        "SPLUNK_SNAPSHOT_SAMPLING_INTERVAL": ("20", 20),
        "SPLUNK_SNAPSHOT_SELECTION_PROBABILITY": ("0.5", 0.5),
    }
    assert values.keys() == {setting.name for setting in SETTINGS}
    resolved = from_env({name: text for name, (text, _) in values.items()})
    assert {name: getattr(resolved.config, _field(name)) for name in values} == {
        name: value for name, (_, value) in values.items()
    }
    assert all(resolved.origins[_field(name)] == name for name in values)


def _field(name: str) -> str:
    return next(setting.field for setting in SETTINGS if setting.name == name)


def test_snapshot_profiling_runs_with_and_without_the_profiler() -> None:
    alone = from_env({"SPLUNK_SNAPSHOT_PROFILER_ENABLED": "true"})
    assert (alone.warnings, alone.config.runs, alone.config.samples, alone.config.enabled) == ((), True, True, False)
    assert (alone.config.publishes_correlation, alone.config.publishes_labels) == (False, False)
    assert (alone.config.snapshot_interval_ms, alone.config.snapshot_probability) == (10, 0.01)
    without = from_env({"SPLUNK_PROFILER_ENABLED": "true"}).config
    assert (without.samples, without.snapshot_enabled) == (True, False)


@pytest.mark.parametrize("share", [0.0, 0.00001, 5e-10, 1.0])
def test_any_probability_of_traces_can_be_set_in_code_and_environment(share: float) -> None:
    assert Config(snapshot_probability=share).snapshot_probability == share
    said = from_env({"SPLUNK_SNAPSHOT_SELECTION_PROBABILITY": str(share)})
    assert (said.warnings, said.config.snapshot_probability) == ((), share)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("", 0.02), ("2", 0.02), ("0.5", 0.005), (".5", 0.005), ("100", 1.0), ("off", None), ("OFF", None)],
)
def test_the_limit_of_the_profilers_own_cpu_time_is_a_percentage_or_off(text: str, limit: float | None) -> None:
    resolved = from_env({"SPLUNK_PROFILER_MAX_OVERHEAD": text})
    assert resolved.warnings == ()
    assert resolved.config.overhead_limit == limit
    assert Config(max_overhead=text or "2").overhead_limit == limit


def test_samples_are_gathered_longer_where_they_are_summed_up() -> None:
    assert from_env({}).config.export_interval_ns == 1_000_000_000
    assert from_env({"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64"}).config.export_interval_ns == 10_000_000_000
    asked = {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64", "SPLUNK_PROFILER_EXPORT_INTERVAL": "500"}
    assert from_env(asked).config.export_interval_ns == 500_000_000
    assert Config(output="file:/x").export_interval_ns == 10_000_000_000
    assert Config(output="datadog:http://h").export_interval_ns == 60_000_000_000
    assert Config(output="datadog:http://h", export_interval_ms=500).export_interval_ns == 500_000_000
    with pytest.raises(ConfigError):
        Config(export_interval_ms="500")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "published"),
    [
        ({}, (False, False, False)),
        ({"enabled": True}, (True, True, True)),
        ({"enabled": True, "correlation": "false"}, (True, False, True)),
        ({"enabled": True, "custom_labels": "false"}, (True, True, False)),
        ({"correlation": "true"}, (True, True, False)),
        ({"custom_labels": "True"}, (True, False, True)),
        ({"correlation": "false", "custom_labels": "auto"}, (False, False, False)),
    ],
)
def test_publishing_goes_with_sampling_unless_it_is_asked_for_or_refused(
    settings: dict[str, Any], published: tuple[bool, bool, bool]
) -> None:
    config = Config(**settings)
    assert (config.runs, config.publishes_correlation, config.publishes_labels) == published


def test_the_environment_describes_the_service_by_opentelemetrys_rules() -> None:
    env = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a, deployment.environment.name=b%2Cc ,broken,x="}
    expected = {"service.name": "a", "deployment.environment.name": "b,c", "x": ""}
    assert from_env(env).resource_attributes == expected
    assert from_env({**env, "OTEL_SERVICE_NAME": " d "}).resource_attributes == {**expected, "service.name": "d"}
    assert from_env({}).resource_attributes == {}


def test_an_empty_or_blank_variable_counts_as_not_set() -> None:
    assert from_env({"SPLUNK_PROFILER_ENABLED": "", "OTEL_EXPORTER_OTLP_ENDPOINT": "  "}).warnings == ()


def test_a_config_made_in_code_is_checked_and_raises() -> None:
    with pytest.raises(ConfigError, match=r"Config\(call_stack_interval_ms=0\).*outside 1 to 3600000"):
        Config(call_stack_interval_ms=0)
    with pytest.raises(ConfigError, match=r"enabled='yes'.*not of type bool, as False is"):
        Config(enabled="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="logs_endpoint='htp:/x'"):
        Config(logs_endpoint="htp:/x")


def test_a_config_made_in_code_says_where_its_values_came_from() -> None:
    resolved = from_config(Config(enabled=True, logs_endpoint="http://h:1"), {})
    assert resolved.origins == {"enabled": "Config(enabled)", "logs_endpoint": "Config(logs_endpoint)"}
    assert resolved.endpoint == Endpoint("http://h:1", "h:1", False, "Config(logs_endpoint)")


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    text = DOCUMENTATION.read_text("utf-8")
    for setting in SETTINGS:
        default = next(item.default for item in fields(Config) if item.name == setting.field)
        shown = "not set" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        assert re.search(rf"`{setting.name}` \|[^|]*\| {re.escape(shown)} \|", text), setting.name


@pytest.mark.parametrize(
    ("env", "identifies"),
    [
        ({}, False),
        ({"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64"}, False),
        ({"SPLUNK_PROFILER_OUTPUT": "file:/profiles"}, False),
        ({"SPLUNK_PROFILER_OUTPUT": "datadog:http://agent:8126"}, True),
        ({"SPLUNK_PROFILER_SPAN_RUNTIME_ID_ENABLED": "TRUE"}, True),
        (
            {
                "SPLUNK_PROFILER_OUTPUT": "datadog:http://agent:8126",
                "SPLUNK_PROFILER_SPAN_RUNTIME_ID_ENABLED": "false",
            },
            False,
        ),
    ],
)
def test_spans_are_identified_where_asked_for_or_needed(env: dict[str, str], identifies: bool) -> None:
    assert from_env(env).config.adds_span_runtime_id is identifies
