"""An exception of the application's signal handler reaches the application, also from within the profiler's code."""

from __future__ import annotations

import pytest
from target_process import Target, profiling_settings

_NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("walker", ["auto", "portable"])
@pytest.mark.parametrize("sampling", ["sampled", "unsampled"])
def test_time_limit_of_a_job_is_never_lost(sampling: str, walker: str) -> None:
    settings = profiling_settings(
        _NOBODY, 10, walker, SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64", SPLUNK_SNAPSHOT_PROFILER_ENABLED="true"
    )
    with Target("interrupted_spans.py", sampling, env=settings) as target:
        raised, arrived = target.json("interrupted", 120)
        assert target.finish() == 0, target.output
        assert raised == arrived == 1000, target.output
