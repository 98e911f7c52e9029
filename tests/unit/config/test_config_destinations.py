"""Destinations, endpoints and headers, by the settings."""

from __future__ import annotations

import pytest

from splunk_profiler.config import Config, from_env
from splunk_profiler.config.parsers import (
    Collector,
    ConfigError,
    DatadogAgent,
    Destination,
    Directory,
    Endpoint,
    NoDestination,
    parse_endpoint,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "htp:/x"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "http://host:99999"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "http://host:0"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "grpc://c:4317"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "htps://c:4317"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "collector"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "dns:collector"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "dns://8.8.8.8/collector:4317"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "unix:"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "unix://run/collector.sock"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "unix:/" + "x" * 107),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "http://a b:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://c:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:port"),
        ("SPLUNK_PROFILER_OUTPUT", "OTLP"),
        ("SPLUNK_PROFILER_OUTPUT", "file"),
        ("SPLUNK_PROFILER_OUTPUT", "file:"),
        ("SPLUNK_PROFILER_OUTPUT", "file:profiles"),
        ("SPLUNK_PROFILER_OUTPUT", "file:/tmp/../etc"),
        ("SPLUNK_PROFILER_OUTPUT", "flie:/var/profiles"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:localhost:8126"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:htps://agent:8126"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://agent:0"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://agent:99999"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://agent:8126/profiling"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:http://agent:8126#x"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:unix:apm.socket"),
        ("SPLUNK_PROFILER_OUTPUT", "datadog:unix://run/apm.socket"),
    ],
)
def test_a_mistyped_destination_sends_nothing_and_says_what_is_allowed(name: str, value: str) -> None:
    elsewhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://general:2", "SPLUNK_PROFILER_ENABLED": "true"}
    resolved = from_env({**elsewhere, name: value})
    assert isinstance(resolved.destination, NoDestination)
    assert (resolved.endpoint, resolved.samples) == (None, False)
    assert resolved.config.publishes_correlation, "host profilers need no destination"
    (warning,) = resolved.warnings
    assert warning == resolved.destination.reason
    assert f"{name}={value!r} is not usable" in warning
    assert "(allowed: otlp, file:" in warning or "(allowed: http(s)://" in warning
    assert "no samples are taken" in warning


def test_a_relative_socket_path_counts_from_its_directory() -> None:
    for name in (OURS, GENERAL):
        resolved = from_env({name: f"unix:{'x' * 100}"}, directory="/run/s")
        assert resolved.endpoint is not None
        assert resolved.endpoint.path == f"/run/s/{'x' * 100}"
        resolved = from_env({name: f"unix:{'x' * 100}"}, directory="/run/sockets")
        assert isinstance(resolved.destination, NoDestination)
        assert "no absolute path of at most 107 bytes" in resolved.destination.reason


def test_two_mistyped_settings_are_both_named() -> None:
    names = ("SPLUNK_PROFILER_OUTPUT", "SPLUNK_PROFILER_LOGS_ENDPOINT")
    resolved = from_env(dict.fromkeys(names, "nowhere"))
    assert isinstance(resolved.destination, NoDestination)
    assert len(resolved.warnings) == 2
    for name in names:
        assert f"{name}='nowhere'" in resolved.destination.reason


def test_an_endpoint_that_is_not_needed_cannot_be_wrong() -> None:
    wrong = {"SPLUNK_PROFILER_LOGS_ENDPOINT": "grpc://c:4317", "OTEL_EXPORTER_OTLP_ENDPOINT": "grpc://c:4317"}
    resolved = from_env({"SPLUNK_PROFILER_OUTPUT": "file:/x", **wrong})
    assert (resolved.destination, resolved.endpoint, resolved.warnings) == (Directory("/x"), None, ())


def test_with_nowhere_to_send_to_there_is_nothing_to_run() -> None:
    off = {"SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "false"}
    off["ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED"] = "false"
    assert not from_env({"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_OUTPUT": "x", **off}).runs
    assert from_env({"SPLUNK_PROFILER_ENABLED": "true", **off}).runs


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("otlp", Collector()),
        ("file:/var/profiles", Directory("/var/profiles")),
        ("file:///var/pro:files", Directory("///var/pro:files")),
        ("datadog:http://agent", DatadogAgent("http://agent", "agent", 8126)),
        ("datadog:http://10.0.0.1:9000/", DatadogAgent("http://10.0.0.1:9000/", "10.0.0.1", 9000)),
        ("datadog:http://[::1]:9000", DatadogAgent("http://[::1]:9000", "::1", 9000)),
        ("datadog:https://agent:9000", DatadogAgent("https://agent:9000", "agent", 9000, is_secure=True)),
        (
            "datadog:unix:///run/apm.socket",
            DatadogAgent("unix:///run/apm.socket", "localhost", 0, path="/run/apm.socket"),
        ),
        ("datadog:unix:/run/apm.socket", DatadogAgent("unix:/run/apm.socket", "localhost", 0, path="/run/apm.socket")),
    ],
)
def test_destinations_are_understood(text: str, destination: Destination) -> None:
    assert from_env({"SPLUNK_PROFILER_OUTPUT": text}).config.destination == destination


def test_files_and_datadog_agents_take_profiles_whatever_the_format() -> None:
    for output in ("file:/x", "datadog:http://h"):
        resolved = from_env({"SPLUNK_PROFILER_OUTPUT": output})
        assert resolved.config.sends_profiles
        assert resolved.warnings == ()
        resolved = from_env({"SPLUNK_PROFILER_OUTPUT": output, "SPLUNK_PROFILER_DATA_FORMAT": "text"})
        assert resolved.config.sends_profiles
        (warning,) = resolved.warnings
        assert f"SPLUNK_PROFILER_DATA_FORMAT=text has no effect: SPLUNK_PROFILER_OUTPUT={output!r}" in warning
        asked = {"SPLUNK_PROFILER_OUTPUT": output, "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64"}
        assert from_env(asked).warnings == ()
    both = {"SPLUNK_PROFILER_OUTPUT": "otlp", "SPLUNK_PROFILER_DATA_FORMAT": "text"}
    assert from_env(both).warnings == ()


def test_a_destination_made_in_code_is_checked() -> None:
    assert Config(output="file:/x").destination == Directory("/x")
    with pytest.raises(ConfigError, match=r"Config\(output='file:x'\): not an absolute path"):
        Config(output="file:x")


def test_the_profilers_own_endpoint_goes_before_the_general_one() -> None:
    both = {"SPLUNK_PROFILER_LOGS_ENDPOINT": "http://own:1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://general:2"}
    assert from_env(both).endpoint == Endpoint("http://own:1", "own:1", False, "SPLUNK_PROFILER_LOGS_ENDPOINT")
    del both["SPLUNK_PROFILER_LOGS_ENDPOINT"]
    assert from_env(both).endpoint == Endpoint("http://general:2", "general:2", False, "OTEL_EXPORTER_OTLP_ENDPOINT")


@pytest.mark.parametrize(
    ("url", "target", "is_secure"),
    [
        ("http://localhost:4317", "localhost:4317", False),
        ("https://ingest.example.com", "ingest.example.com:4317", True),
        ("https://collector:443/path", "collector:443", True),
        ("http://[::1]:4317", "[::1]:4317", False),
        ("collector:4317", "collector:4317", True),
        ("HTTP://Collector:1", "Collector:1", False),
        ("dns:collector:4317", "dns:collector:4317", True),
        ("dns:///collector:4317", "dns:///collector:4317", True),
        ("dns:[::1]:4317", "dns:[::1]:4317", True),
        ("unix:/run/c.sock", "unix:/run/c.sock", False),
        ("unix:///run/c.sock", "unix:/run/c.sock", False),
        ("unix:c.sock", "unix:c.sock", False),
        ("unix:/run/my collector", "unix:/run/my%20collector", False),
    ],
)
def test_endpoints_are_understood(url: str, target: str, is_secure: bool) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.target, endpoint.is_secure) == (target, is_secure)


@pytest.mark.parametrize(
    ("url", "insecure", "is_secure"),
    [
        ("collector:4317", "true", False),
        ("dns:collector:4317", "true", False),
        ("unix:/run/c.sock", "true", False),
        ("unix:/run/c.sock", "false", True),
        ("https://collector", "true", True),
        ("http://collector", "false", False),
    ],
)
def test_a_setting_says_whether_an_endpoint_without_http_is_plaintext(url: str, insecure: str, is_secure: bool) -> None:
    endpoint = from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_INSECURE": insecure}).endpoint
    assert endpoint is not None
    assert endpoint.is_secure is is_secure


@pytest.mark.parametrize(
    ("url", "path", "authority", "normalized_host"),
    [
        ("https://Collector", "", "Collector:4317", "collector"),
        ("dns:///[::1]:4317", "", "[::1]:4317", "localhost"),
        ("dns:c.example.:4317", "", "c.example.:4317", "c.example"),
        ("http://127.0.0.1:1", "", "127.0.0.1:1", "localhost"),
        ("unix:/run/my collector", "/run/my collector", "", "localhost"),
    ],
)
def test_an_endpoint_knows_its_place(url: str, path: str, authority: str, normalized_host: str) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.path, endpoint.authority, endpoint.normalized_host) == (path, authority, normalized_host)


OURS, GENERAL = "SPLUNK_PROFILER_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("places", "sent"),
    [
        ({GENERAL: "https://a"}, True),
        ({}, True),
        ({GENERAL: "https://a", OURS: "https://A:4319"}, True),
        ({GENERAL: "http://localhost:4317", OURS: "http://127.0.0.1:4319"}, True),
        ({GENERAL: "http://localhost:4317", OURS: "unix:/run/c.sock"}, True),
        ({GENERAL: "https://a", OURS: "https://b"}, False),
        ({GENERAL: "grpc:/a", OURS: "https://a"}, False),
        ({OURS: "https://a"}, False),
    ],
)
def test_general_headers_go_to_the_general_host_only(places: dict[str, str], sent: bool) -> None:
    headers, general = "OTEL_EXPORTER_OTLP_HEADERS", {"SPLUNK_PROFILER_ENABLED": "true"}
    resolved = from_env({**general, **places, headers: "x-token=sesame"})
    assert resolved.transport.headers == ((("x-token", "sesame"),) if sent else ())
    assert len(resolved.warnings) == (not sent)
    assert all(headers in line and "SPLUNK_PROFILER_LOGS_HEADERS" in line for line in resolved.warnings)
    assert "sesame" not in "".join(resolved.warnings)
    for own in ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "SPLUNK_PROFILER_LOGS_HEADERS"):
        resolved = from_env({**general, **places, headers: "x-token=sesame", own: "x-own=1"})
        assert (resolved.transport.headers, resolved.warnings) == ((("x-own", "1"),), ())


def test_secrets_for_logs_of_another_host_do_not_count() -> None:
    prefix, provider = "OTEL_EXPORTER_OTLP_", "OTEL_PYTHON_EXPORTER_OTLP_GRPC_LOGS_CREDENTIAL_PROVIDER"
    logs = {"HEADERS": "x-token=sesame", "CERTIFICATE": "/vendor", "COMPRESSION": "gzip"}
    env = {"SPLUNK_PROFILER_ENABLED": "true", GENERAL: "https://a", f"{prefix}CERTIFICATE": "/ca", provider: "vendor"}
    env.update({f"{prefix}LOGS_{name}": value for name, value in logs.items()})
    for place in ("https://a:4318/v1/logs", "", "A:1"):
        taken = from_env({**env, f"{prefix}LOGS_ENDPOINT": place}).transport
        assert (taken.headers, taken.gzip, taken.credential_provider) == ((("x-token", "sesame"),), True, "vendor")
        assert taken.certificates.files[0] == "/vendor"
    for place in ("https://logs.vendor.example", "not understood"):
        elsewhere = {**env, f"{prefix}LOGS_ENDPOINT": place}
        resolved = from_env(elsewhere)
        taken = resolved.transport
        assert (taken.headers, taken.credential_provider) == ((), "")
        assert (taken.gzip, taken.certificates.files[0]) == (True, "/vendor")  # no secrets
        lines = (f"{prefix}LOGS_HEADERS is for the host of {prefix}LOGS_ENDPOINT", f"{provider} is for the host of")
        assert len(resolved.warnings) == 2
        assert all(part in line for part, line in zip(lines, resolved.warnings, strict=True))
        assert "sesame" not in "".join(resolved.warnings)
        assert f"set {provider.replace('LOGS_', '')} for that" in resolved.warnings[1]
        resolved = from_env({**elsewhere, f"{prefix}HEADERS": "x-a=general", provider: ""})
        assert (resolved.transport.headers, resolved.warnings) == ((("x-a", "general"),), ())
        (*_, line) = from_env({**elsewhere, OURS: "https://b"}).warnings
        assert "set " not in line  # the general provider would not count either


def test_a_general_maker_of_credentials_serves_the_general_host_only() -> None:
    general, own = (f"OTEL_PYTHON_EXPORTER_OTLP_GRPC_{signal}CREDENTIAL_PROVIDER" for signal in ("", "LOGS_"))
    env = {"SPLUNK_PROFILER_ENABLED": "true", GENERAL: "https://a", OURS: "https://b", general: "vendor"}
    resolved = from_env(env)
    assert (resolved.transport.credential_provider, resolved.transport.trace_credential_provider) == ("", "vendor")
    (line,) = resolved.warnings
    assert general in line
    assert own in line
    assert from_env({**env, own: "mine"}).transport.credential_provider == "mine"
    assert from_env({**env, OURS: "https://a:1"}).transport.credential_provider == "vendor"


def test_headers_are_in_no_text_form_of_the_settings() -> None:
    assert "sesame" not in repr(Config(logs_headers="x=sesame"))
    with pytest.raises(ConfigError) as raised:
        Config(logs_headers=b"x=sesame")  # type: ignore[arg-type]
    assert "sesame" not in str(raised.value)


def test_datadogs_tags_are_read_as_its_own_clients_do() -> None:
    read = {
        "team:shop,region:eu": {"team": "shop", "region": "eu"},
        "team:shop region:eu": {"team": "shop", "region": "eu"},
        " team:shop, note: two words , url:http://x:1 ": {"team": "shop", "note": "two words", "url": "http://x:1"},
        "lonely,:x, ,team:": {"lonely": "", "team": ""},
        "": {},
    }
    assert {text: from_env({"DD_TAGS": text}).tags for text in read} == read
