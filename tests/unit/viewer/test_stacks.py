"""The table of stacks while it grows: it is the same as one that is made at once."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise

import numpy as np
import pytest

from splunk_profiler.viewer.stacks import BuiltStacks, Stacks


def _random_stack(chosen: random.Random) -> bytes:
    """Few functions, so that many stacks begin alike, are equal but for lines, or are the beginning of others."""
    frames = array("i")
    for _ in range(chosen.randrange(6)):
        frames.extend((chosen.randrange(4), chosen.randrange(1, 4)))
    return frames.tobytes()


@pytest.mark.parametrize("seed", range(5))
def test_table_that_grows_is_the_same_as_one_made_at_once(seed: int) -> None:
    chosen = random.Random(seed)
    stacks, frames, starts = Stacks(), array("i"), array("q", (0,))
    for step in range(300):
        for _ in range(chosen.choice((0, 1, 1, 3, 200)) if step else 500):
            known = len(stacks)
            stack = _random_stack(chosen) if chosen.random() < 0.9 else array("i", (5 + step, 1)).tobytes()
            if stacks.index(stack) == known:
                frames.frombytes(stack)
                starts.append(len(frames) // 2)
        stacks.prepare()
        if step % 10 == 0:
            _assert_same(stacks.built(), BuiltStacks(frames, starts))
    assert len(stacks) > 500


def _assert_same(grown: BuiltStacks, whole: BuiltStacks) -> None:
    assert grown.function_count == whole.function_count
    for name in ("functions", "lines", "starts", "stack_of", "member_functions", "member_counts", "function_lines"):
        np.testing.assert_array_equal(getattr(grown, name), getattr(whole, name), name)
    for inverted in (False, True):
        (order, common), (expected_order, expected_common) = grown.order(inverted), whole.order(inverted)
        np.testing.assert_array_equal(order, expected_order)
        np.testing.assert_array_equal(common, expected_common)


def test_sorted_stacks_begin_like_the_one_before_as_far_as_is_said() -> None:
    chosen, stacks = random.Random(7), Stacks()
    for _ in range(300):
        stacks.index(_random_stack(chosen))
    order, common = stacks.built().order(inverted=False)
    functions = [[frame.function for frame in stacks.frames(int(place))] for place in order]
    assert functions == sorted(functions)
    for (one, other), shared in zip(pairwise(functions), common[1:], strict=True):
        assert one[:shared] == other[:shared]
        assert one[: shared + 1] != other[: shared + 1] or one == other
