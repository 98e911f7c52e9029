"""Tests of the parts of a store as columns."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from splunk_profiler.viewer.columns import Columns, span_keys
from splunk_profiler.viewer.model import DAY_NS, LONG_PROFILE_NS, NO_SPAN
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


@pytest.mark.parametrize(("longest", "usual_ns"), [((), 0), ((7,), 7), ((DAY_NS,), LONG_PROFILE_NS)])
def test_a_part_of_an_older_version_has_what_it_says_of_lengths(longest: tuple[int, ...], usual_ns: int) -> None:
    buffer = io.BytesIO()
    with np.load(io.BytesIO(pack(samples_of_spans(1, 3)))) as arrays, zipfile.ZipFile(buffer, "w") as archive:
        for name, array in {**arrays, "longest": np.array(longest)}.items():
            if len(array):
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array)
    found = unpack(buffer.getvalue(), ["samples"])
    assert (found.longest_ns, found.usual_ns) == (sum(longest), usual_ns)
    assert found.end_ns == 3 + max(1, sum(longest))
