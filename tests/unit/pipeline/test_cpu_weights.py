"""The weights of samples in the distribution of CPU time."""

from __future__ import annotations

import pytest
from stream_feed import StreamedBuilder

from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import STATE_RUNNING, RawSnapshot, RawThread
from splunk_profiler.samples import Sample

MS = 1_000_000
PERIOD_NS = 100 * MS
STACK = Stack((Frame("shop", "work", "shop.py", 1),), truncated=False)
BEGAN_NS = 1_000_000 * PERIOD_NS


@pytest.mark.parametrize(
    ("elapsed_periods", "used_periods", "weight"),
    [
        (1, 1.0, 1),
        (1, 0.0, 1),  # its clock is coarse, or it has just begun
        (3, 3.0, 3),  # it was in C code that kept the GIL at two deadlines
        (50, 0.1, 1),  # the process was frozen
        (50, 1.0, 2),
        (50, 20.4, 21),
    ],
)
def test_weight_of_a_sample_follows_the_time_its_thread_can_have_run(
    elapsed_periods: int, used_periods: float, weight: int
) -> None:
    builder = StreamedBuilder(period_ns=PERIOD_NS)
    samples: list[Sample] = []
    for elapsed_ns, used_ns in ((0, MS), (elapsed_periods * PERIOD_NS, MS + int(used_periods * PERIOD_NS))):
        thread = RawThread(1, 1, 1 << 30, STACK, None, None, used_ns, STATE_RUNNING)
        now_ns = BEGAN_NS + elapsed_ns
        raw = RawSnapshot(now_ns, 0, (thread,), PERIOD_NS, False, elapsed_ns, used_ns, now_ns)
        samples += builder.snapshot(raw).samples
    sample = samples[-1].thread
    assert sample.wall_delta_ns == elapsed_periods * PERIOD_NS
    assert sample.cpu_weight_ns == weight * PERIOD_NS
