"""The doctor's findings on waits."""

from __future__ import annotations

import pytest

from splunk_profiler.capture.walker import choose_walker
from splunk_profiler.cli.checks import check_waits
from splunk_profiler.config import Config


@pytest.mark.skipif(choose_walker("native").name != "native", reason="the native walker is not built")
@pytest.mark.parametrize(
    ("interval_ms", "threshold_ms", "fact"),
    [
        (1000, 100, "for 100 to 200 ms"),
        (10, 100, "for 100 to 120 ms"),
        (1000, 4, "for 4 to 24 ms"),
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
