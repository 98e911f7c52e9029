"""A key or a text of many lines in any setting is in no log line and in no output of the doctor."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from command_line import splunk_profiler
from target_process import Target

from splunk_profiler.cli import checks
from splunk_profiler.config import Config, from_config, from_env
from splunk_profiler.config.parsers import ConfigError
from splunk_profiler.config.settings import SETTINGS

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text("utf-8")
OTHERS = sorted({*re.findall(r"`(OTEL_[A-Z_]+)`", DOCUMENTED), "DD_TAGS"})
NAMES = [*(setting.name for setting in SETTINGS), *OTHERS]
_KEY = "".join(base64.b64encode(bytes([number, 77, 255 - number])).decode() for number in range(3, 80))
_PEM = f"-----BEGIN PRIVATE KEY-----\n{_KEY}\n-----END PRIVATE KEY-----"
_ELLIPTIC = f"MIGHAgEAMBMG{_KEY}"
_LINES = "a line of text that goes on\nand another one with the secret in it"
VALUES = (
    _PEM,
    _PEM.replace("\n", "\\n"),
    base64.b64encode(_PEM.encode()).decode(),
    f"MIIE{_KEY}",
    _ELLIPTIC,
    f"MC4CAQAwBQYDK2VwBCIE{_KEY}",
    _LINES,
    f"/run/secrets\n{_KEY}",
    f"https://collector:4317\n{_KEY}",
    f"collector:{_KEY}\nx",
    f"datadog:https://agent:{_KEY}\n/",
    f"unix:/run/{_KEY}\nx",
    f"file:/var/{_KEY}\nx",
)
_SHOWN = 20


def leaked(output: str, value: str) -> list[str]:
    """Parts of `value` that are longer than what may be shown, and are in `output`."""
    flat = output.replace("\n", "").replace("\r", "")
    parts = [line[start : start + _SHOWN + 1] for line in value.splitlines() for start in range(len(line) - _SHOWN)]
    return [part for part in parts if part in flat]


def said_of(settings: Iterable[object]) -> str:
    return "\n".join(map(str, settings))


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_in_any_setting_is_in_no_warning_and_no_table(name: str) -> None:
    for value in VALUES:
        resolved = from_env({"SPLUNK_PROFILER_ENABLED": "true", name: value})
        told = [*resolved.warnings, *checks.settings(resolved), *checks.check_switches(resolved), resolved.destination]
        assert leaked(said_of(told), value) == []
        assert all("\n" not in warning for warning in resolved.warnings)


@pytest.mark.parametrize("field", [setting.field for setting in SETTINGS])
def test_a_secret_in_any_setting_made_in_code_is_in_no_error(field: str) -> None:
    for value in VALUES:
        try:
            said = said_of(checks.settings(from_config(Config(**{field: value}), {})))  # type: ignore[arg-type]
        except ConfigError as error:
            said = str(error)
        assert leaked(said, value) == []


_SERVICE = """
import logging
class Ours(logging.Handler):
    def emit(self, record):
        print("log", repr(self.format(record)), flush=True)
logging.getLogger("splunk_profiler").addHandler(Ours())
logging.getLogger("splunk_profiler").setLevel(logging.DEBUG)
logging.getLogger("splunk_profiler").propagate = False
import splunk_profiler
print("started", splunk_profiler.start(), flush=True)
input()
splunk_profiler.stop()
"""
# With these, records are on their way: certificates are read, and what fails is said.
_GOOD = {
    "SPLUNK_PROFILER_ENABLED": "true",
    "SPLUNK_PROFILER_OUTPUT": "otlp",
    "SPLUNK_PROFILER_LOGS_ENDPOINT": "https://localhost:9",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://localhost:9",
    "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10",
    "SPLUNK_PROFILER_EXPORT_INTERVAL": "50",
    "OTEL_SDK_DISABLED": "false",
}


@pytest.mark.parametrize(
    ("value", "reached", "form"),
    [(_PEM, False, ()), (_PEM, True, ("--json",)), (_LINES, True, ()), (_ELLIPTIC, False, ("--json",))],
    ids=["pem, all settings", "pem, all that records need", "lines, all that records need", "binary, all settings"],
)
def test_secret_in_every_setting_is_in_no_log_and_not_in_doctor_output(
    value: str, reached: bool, form: tuple[str, ...]
) -> None:
    env = {**dict.fromkeys(NAMES, value), **(_GOOD if reached else {"SPLUNK_PROFILER_ENABLED": "true"})}
    env["OTEL_PYTHON_CONTEXT"] = "contextvars_context"
    with Target(sys.executable, "-c", _SERVICE, env=env) as target:
        target.line("started")
        if reached:
            target.line("log 'profiling records are not delivered")
        target.tell("")
        target.finish()
        said = "\n".join(line for line in target.final_output().splitlines() if line.startswith("log "))
    assert "is not usable" in said
    if reached:
        assert "OTEL_EXPORTER_OTLP_LOGS_CLIENT_KEY=" in said
        assert "cannot be used" in said
    assert leaked(said, value) == []
    ended = splunk_profiler("doctor", *form, env=env)
    assert "SPLUNK_PROFILER_LOGS_HEADERS" in ended.stdout, ended.stderr
    assert leaked(ended.stdout + ended.stderr, value) == []
