"""Settings with bytes that are no UTF-8, which Python decodes to lone surrogates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from splunk_profiler.config import Config, from_env
from splunk_profiler.config.handover import from_values, to_values
from splunk_profiler.config.parsers import ConfigError
from splunk_profiler.config.settings import SETTINGS

_DOCUMENTATION = Path(__file__).parents[3] / "docs" / "configuration.md"
_FORMS = (
    *("\udcff", "a=\udcff", "\udcff=a", "/run/\udcff", "file:/run/\udcff", "stream:/run/\udcff", "unix:/tmp/\udcff"),
    *("http://\udcff:1", "dns:\udcff:1", "\udcff:1", "datadog:http://\udcff:1", "datadog:unix:///tmp/\udcff"),
)
_ENDPOINTS = ("SPLUNK_PROFILER_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def _variables() -> list[str]:
    """Return the variables in the documentation, which has all of them."""
    found = set(re.findall(r"`((?:SPLUNK|ELASTIC|OTEL|DD)_[A-Z_]+)`", _DOCUMENTATION.read_text("utf-8")))
    assert found >= {setting.name for setting in SETTINGS} | {"OTEL_EXPORTER_OTLP_CLIENT_KEY", "DD_TAGS"}
    return sorted(found)


@pytest.mark.parametrize("name", _variables())
def test_any_setting_may_have_bytes_that_are_no_text(name: str) -> None:
    for text in _FORMS:
        warnings = from_env({"SPLUNK_PROFILER_ENABLED": "true", name: text}).warnings
        assert all(warning.isprintable() for warning in warnings)


@pytest.mark.parametrize("name", _ENDPOINTS)
def test_socket_path_keeps_bytes_that_are_no_text(name: str) -> None:
    resolved = from_env({name: os.fsdecode(b"unix:/tmp/\xff.sock")})
    handed_over = from_values(json.loads(json.dumps(to_values(resolved))))
    for endpoint in (resolved.endpoint, handed_over.endpoint):
        assert endpoint is not None
        assert endpoint.target == "unix:/tmp/%FF.sock"
        assert os.fsencode(endpoint.path) == b"/tmp/\xff.sock"


def test_doctor_finds_a_relative_socket_path_of_such_bytes() -> None:
    endpoint = from_env({_ENDPOINTS[0]: "unix:\udcff.sock"}, directory="/proc/7/cwd").endpoint
    assert endpoint is not None
    assert endpoint.path == "/proc/7/cwd/\udcff.sock"


def test_socket_path_that_has_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Config\(logs_endpoint='unix:/tmp/\\ud800'\)"):
        Config(logs_endpoint="unix:/tmp/\ud800")


@pytest.mark.parametrize("text", ["\udcff", "unix:/tmp/\udcff"])
def test_launcher_runs_its_command_whatever_the_settings_are(text: str) -> None:
    settings = {**dict.fromkeys(_variables(), text), "SPLUNK_PROFILER_ENABLED": "true"}
    del settings["OTEL_PYTHON_CONTEXT"]  # OpenTelemetry logs a traceback of its own
    command = (sys.executable, "-m", "splunk_profiler", "run", "--", sys.executable, "-c", "print('works')")
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"works\n"), done.stderr
    assert b"Traceback" not in done.stderr
