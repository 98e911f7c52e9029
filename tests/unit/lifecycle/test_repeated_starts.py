"""Starts and stops one after the other leave nothing of the profiler in the application."""

from __future__ import annotations

import pytest
from short_programs import run_code

_CYCLES = """
import splunk_profiler
from splunk_profiler.otel import spans

for _ in range(3):
    assert splunk_profiler.start()
    assert {"attach", "detach"} <= vars(spans.runtime_context()).keys()
    splunk_profiler.stop(0)
    print({"attach", "detach"} & vars(spans.runtime_context()).keys())
"""


@pytest.mark.parametrize("walker", ["native", "portable"])
def test_runtime_context_is_as_it_was_after_each_stop(walker: str) -> None:
    settings = {"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_WALKER": walker}
    assert run_code(_CYCLES, **settings).splitlines()[:3] == ["set()"] * 3
