"""A profiler that runs while the application imports asyncio."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from received_profiles import blocks_loop, read
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")


def _is_inside(function: str, record: dict[str, Any]) -> bool:
    return any(f"__main__.{function}" in sample.functions for sample in read(record).samples)


def test_profiler_leaves_an_asyncio_alone_that_is_being_imported() -> None:
    with Receiver() as receiver:
        settings = {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64", "OTEL_SERVICE_NAME": "slow"}
        env = profiling_settings(receiver.url, 10, **settings)
        with Target("slow_asyncio.py", env=env) as target:
            for count in (1, 2):
                # After a capture that is sent, the worker has looked for event loops.
                receiver.record(partial(_is_inside, target.lines(count, "held ")[-1]))
                target.tell("go on")
            blocked = receiver.record(lambda record: blocks_loop(record, "__main__.block_loop"))
            target.tell("go on")
            assert target.finish() == 0, target.output
    assert [each.labels.get("task.name") for each in read(blocked).samples if each.loop_blocks] == ["invoice"]
