"""Tests of the parts of a store as columns."""

from __future__ import annotations

import numpy as np

from splunk_profiler.viewer.columns import Columns, span_keys
from splunk_profiler.viewer.model import NO_SPAN
from splunk_profiler.viewer.parts import joined, pack, unpack


def samples_of_spans(first: int, count: int) -> Columns:
    """Return a sample of each of some spans."""
    keys = [(f"{number:032x}", f"{number:016x}") for number in range(first, first + count)]
    numbers = np.arange(count)
    ones = np.ones(count, np.int64)
    return Columns(first + numbers, ones, ones, 1 + numbers, {"samples": ones}, span_keys([NO_SPAN, *keys]))


def test_samples_of_many_spans_stay_with_theirs_in_a_joined_part() -> None:
    """Fails with numpy before version 2 if a part's numbers of few bits are added up as they are."""
    parts = [unpack(pack(samples_of_spans(first, 200)), ["samples"]) for first in (1, 1000)]
    whole = joined(parts)
    keys = [whole.spans.key(span) for span in whole.span.tolist()]
    assert keys == [(f"{number:032x}", f"{number:016x}") for number in (*range(1, 201), *range(1000, 1200))]
