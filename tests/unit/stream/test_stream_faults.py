"""Real streams with faults of all kinds: nothing but `StreamError` comes out, and little is kept."""

from __future__ import annotations

import tracemalloc

import pytest
from fuzz_stream import fuzz, inputs, pipe, read
from recorded_stream import Recorded, record_ends, record_run

from splunk_profiler.stream.records import RECORD_TYPES


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return record_run(with_all=True)


def test_streams_with_faults_are_read_or_refused(recorded: Recorded) -> None:
    found = fuzz(recorded.data, 40_000, seed=1)
    assert found.total() == 40_000
    assert {"refused", "read", "cut off", "refused by the pipeline"} <= found.keys()


def test_faults_are_made_in_records_of_all_types(recorded: Recorded) -> None:
    ends = record_ends(recorded.data)
    assert {recorded.data[start + 4] for start in ends[:-1]} == {*range(1, len(RECORD_TYPES) + 1)}


@pytest.mark.parametrize("profiles", [True, False])
def test_stream_without_a_fault_is_read_by_the_pipeline(recorded: Recorded, profiles: bool) -> None:
    assert (read(recorded.data), pipe(recorded.data, profiles=profiles)) == ("read", "read by the pipeline")


def test_streams_with_faults_take_little_memory(recorded: Recorded) -> None:
    made = [*inputs(recorded.data, 3_000, seed=2)]
    pipe(recorded.data, profiles=True)
    tracemalloc.start()
    try:
        for mutated in made:
            read(mutated)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(recorded.data) + (1 << 20)
