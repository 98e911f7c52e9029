"""The settings that a process hands over to the exporter process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splunk_profiler.config import from_env
from splunk_profiler.config.handover import from_values, to_values
from splunk_profiler.config.tree import TREE

_SETTINGS = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-token=sesame",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=sesame",
    "DD_TAGS": "team:sesame",
    "SPLUNK_PROFILER_ENABLED": "true",
    "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
}


def test_settings_that_left_the_environment_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _SETTINGS.items():
        monkeypatch.setenv(name, value)
    resolved = from_env()
    for name in _SETTINGS:
        monkeypatch.delenv(name)
    handed_over = from_values(json.loads(json.dumps(to_values(resolved))))
    assert handed_over._replace(variables=resolved.variables) == resolved


def test_relative_paths_start_where_the_settings_were_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prefix = "OTEL_EXPORTER_OTLP_"
    files = {f"{prefix}CERTIFICATE": "ca.pem", f"{prefix}CLIENT_KEY": "/etc/key.pem"}
    monkeypatch.chdir(tmp_path)
    resolved = from_env({f"{prefix}ENDPOINT": "unix:c.sock", f"{prefix}TRACES_CERTIFICATE": "traces.pem", **files})
    monkeypatch.chdir("/")
    for each in (resolved, from_values(json.loads(json.dumps(to_values(resolved))))):
        assert each.endpoint is not None
        assert each.endpoint.path == f"{tmp_path}/c.sock"
        assert each.transport.certificates.files == (f"{tmp_path}/ca.pem", "/etc/key.pem", "")
    assert resolved.transport.trace_certificates.files[0] == f"{tmp_path}/traces.pem"


def test_only_variables_that_settings_may_come_from_are_kept() -> None:
    others = dict.fromkeys(("DATABASE_PASSWORD", "DD_API_KEY", TREE), "sesame")
    resolved = from_env({**_SETTINGS, **others})
    assert resolved.variables == _SETTINGS


def test_resolved_settings_print_no_variable() -> None:
    assert "sesame" not in repr(from_env(_SETTINGS))
