"""The doctor's findings on waits and other events, and on a second profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from splunk_profiler.capture.walker import choose_walker
from splunk_profiler.cli.checks import Verdict, check_events, check_names, check_second_profiler, check_waits
from splunk_profiler.config import Config, from_config
from splunk_profiler.config.settings import SETTINGS


@pytest.mark.skipif(choose_walker("native").name != "native", reason="the native walker is not built")
@pytest.mark.parametrize(
    ("interval_ms", "threshold_ms", "fact"),
    [
        (1000, 100, "for 170 ms and more, from 100 ms on by chance"),
        (10, 100, "for 120 ms and more, from 100 ms on by chance"),
        (1000, 4, "for 24 ms and more, from 4 ms on by chance"),
        (20, 0, "SPLUNK_PROFILER_LOOP_BLOCKED_MS=0"),
    ],
)
def test_check_waits_says_which_blocks_are_seen(interval_ms: int, threshold_ms: int, fact: str) -> None:
    config = Config(data_format="pprof-gzip-base64", call_stack_interval_ms=interval_ms, loop_blocked_ms=threshold_ms)
    gil, loop = check_waits(config)
    assert "gil.wait" in gil.fact
    assert fact in loop.fact


def test_check_waits_says_that_the_portable_walker_finds_no_blocks() -> None:
    _, loop = check_waits(Config(data_format="pprof-gzip-base64", walker="portable"))
    assert "needs the native walker" in loop.fact


def test_check_waits_says_that_text_has_none() -> None:
    (finding,) = check_waits(Config())
    assert "profiles only" in finding.fact


def test_check_events_promises_none_where_only_traces_are_profiled() -> None:
    (finding,) = check_events(Config(snapshot_enabled=True, memory_enabled=True))
    assert finding.verdict is Verdict.WARNING
    assert "SPLUNK_PROFILER_ENABLED=true" in finding.fact
    (finding,) = check_events(Config(snapshot_enabled=True))
    assert finding.verdict is Verdict.NOTE


def test_check_names_warns_of_each_variable_that_is_no_setting() -> None:
    mistyped = {"SPLUNK_PROFILER_INTERVAL": "10", "SPLUNK_SNAPSHOT_ENABLED": "a-secret", "SPLUNK_PROFILER_XYZ": ""}
    interval, unlike, snapshot = check_names({**mistyped, "SPLUNK_REALM": "eu0"})
    assert interval.verdict is snapshot.verdict is unlike.verdict is Verdict.WARNING
    assert interval.fact == "SPLUNK_PROFILER_INTERVAL is no setting of the profiler"
    assert "SPLUNK_PROFILER_CALL_STACK_INTERVAL" in interval.remedy
    assert snapshot.remedy.startswith("perhaps SPLUNK_SNAPSHOT_PROFILER_ENABLED ")
    assert not unlike.remedy
    assert "secret" not in str(snapshot)


def test_check_names_knows_all_settings_and_what_the_launcher_sets() -> None:
    internal = ("SPLUNK_PROFILER_RUN_PID", "SPLUNK_PROFILER_TREE")
    assert not [*check_names(dict.fromkeys([*internal, *(setting.name for setting in SETTINGS)], ""))]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_check_second_profiler_warns_of_another_on_our_switch(
    is_enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "splunk_opentelemetry-2.13.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: splunk-opentelemetry\nVersion: 2.13.2\n", "utf-8")
    (information / "entry_points.txt").write_text(
        "[opentelemetry_configurator]\nconfigurator = splunk_otel.configurator:SplunkConfigurator\n", "utf-8"
    )
    resolved = from_config(Config(enabled=is_enabled), {})
    assert not [*check_second_profiler(resolved)]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [finding.verdict for finding in check_second_profiler(resolved)] == [Verdict.WARNING] * is_enabled
