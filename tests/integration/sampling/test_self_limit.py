"""The limit of the profiler's own CPU time, in a process that is far too much for its interval."""

from __future__ import annotations

import json
from typing import Any

import pytest
from receiver_process import Receiver
from target_process import Target, profiling_settings

_PERCENT, _SMALL_PERCENT = 10, 5
_THREADS, _DEPTH = "40", "20"
_SLACK_NS = 200_000_000  # some may be saved, or follow from what was captured earlier


def _stretched_ms(target: Target) -> int:
    """Wait for the line that says how long the interval has become."""
    return int(target.find(r"SPLUNK_PROFILER_MAX_OVERHEAD\), .*: it samples every (\d+) ms"))


def _used(target: Target, command: str, before: int) -> dict[str, int]:
    target.tell(command)
    found: dict[str, int] = json.loads(target.lines(before + 1, "used")[before])
    return found


def _period_ms(record: dict[str, Any]) -> int:
    return int(record["attributes"]["source.event.period"])


@pytest.mark.takes_long
def test_too_short_an_interval_is_stretched_until_the_load_has_gone() -> None:
    with Receiver() as receiver:
        settings = {"SPLUNK_PROFILER_MAX_OVERHEAD": str(_PERCENT), "OTEL_SERVICE_NAME": "limited"}
        env = profiling_settings(receiver.url, 1, **settings)
        with Target("deep_stacks.py", _THREADS, _DEPTH, env=env) as target:
            target.line("ready")
            stretched_ms = _stretched_ms(target)
            assert stretched_ms > 1
            begun = _used(target, "used", 0)
            receiver.record(lambda record: record["time_ns"] > begun["time_ns"] + 3_000_000_000)
            first = _used(target, "used", 1)
            receiver.record(lambda record: record["time_ns"] > first["time_ns"] + 2_000_000_000)
            second = _used(target, "used", 2)
            cpu_ns, wall_ns = (second[key] - first[key] for key in ("cpu_ns", "wall_ns"))
            assert cpu_ns <= wall_ns * _PERCENT / 100 + _SLACK_NS
            during = [record for record in receiver.records() if record["time_ns"] > first["time_ns"]]
            longest_ms = max(_period_ms(record) for record in during)
            assert longest_ms > stretched_ms
            times = sorted({record["time_ns"] for record in during if _period_ms(record) == longest_ms})
            assert (len(times) - 2) * longest_ms * 1_000_000 <= times[-1] - times[0]
            calm = _used(target, "calm", 3)
            receiver.record(lambda r: r["time_ns"] > calm["time_ns"] and _period_ms(r) < longest_ms * 2 / 3)
            assert target.output.count("SPLUNK_PROFILER_MAX_OVERHEAD") == 1
            target.close_stdin()
            assert target.finish() == 0, target.output


def test_limit_holds_where_threads_of_the_process_export() -> None:
    settings = {
        "SPLUNK_PROFILER_MAX_OVERHEAD": "1",
        "SPLUNK_PROFILER_EXPORTER": "thread",
        "OTEL_SERVICE_NAME": "limited",
    }
    with (
        Receiver() as receiver,
        Target("deep_stacks.py", "8", "40", env=profiling_settings(receiver.url, 1, **settings)) as target,
    ):
        stretched_ms = _stretched_ms(target)
        receiver.record(lambda record: _period_ms(record) >= stretched_ms)
        target.close_stdin()
        assert target.finish() == 0, target.output


def test_limit_counts_an_exporter_process_that_alone_goes_beyond_it() -> None:
    settings = {
        "SPLUNK_PROFILER_MAX_OVERHEAD": str(_SMALL_PERCENT),
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",  # in the exporter process
        "OTEL_SERVICE_NAME": "limited",
    }
    with (
        Receiver() as receiver,
        Target("deep_stacks.py", "8", "40", env=profiling_settings(receiver.url, 2, **settings)) as target,
    ):
        begun = _used(target, "used", 0)
        stretched_ms = _stretched_ms(target)
        assert stretched_ms > 2
        found = _used(target, "used", 1)
        assert found["cpu_ns"] - begun["cpu_ns"] < (found["wall_ns"] - begun["wall_ns"]) * _SMALL_PERCENT / 100
        receiver.record(lambda record: _period_ms(record) >= stretched_ms)
        target.close_stdin()
        assert target.finish() == 0, target.output
