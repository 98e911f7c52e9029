"""Samples of containers that grow and shrink add up to what was allocated for them.

They are in the domain of PyObject_Malloc (bytearrays), of PyMem_Malloc (lists, sets), or in either, by the version
of CPython (dicts), and all but dicts and sets are reallocated.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")
from sampled_allocations import sampling

SAMPLE_BYTES, ROUND_BYTES, ROUNDS = 1_000, 300_000, 130
NUMBERS = [*range(2_000)]
BYTES = [7] * 8_000


class Kind(NamedTuple):
    """A kind of container.

    Attributes:
        counts: least and greatest number of values: so many that an iterator beside them does not matter.
        is_reused: True if CPython makes empty ones of those that have ended.
        is_seen: False where its values are in a domain that is not hooked.
    """

    make: Callable[[], Any]
    add: Callable[[Any, Any], object]
    remove: Callable[[Any], object]
    values: list[int]
    counts: tuple[int, int]
    is_reused: bool
    is_seen: bool = True


MEM_IS_HOOKED = sys.version_info >= (3, 12)
KINDS = {
    "list": Kind(list, list.append, list.pop, NUMBERS, (100, 1_000), is_reused=True, is_seen=MEM_IS_HOOKED),
    "set": Kind(set, set.add, set.pop, NUMBERS, (100, 1_000), is_reused=False, is_seen=MEM_IS_HOOKED),
    "bytearray": Kind(bytearray, bytearray.append, bytearray.pop, BYTES, (500, 8_000), is_reused=False),
    # CPython reuses the smallest tables, too: more values, so that these do not matter.
    "dict": Kind(dict, dict.setdefault, dict.popitem, NUMBERS, (500, 2_000), is_reused=True),
}


def fill_and_empty(kind: Kind, count: int, see: Callable[[Any], object] = bool) -> None:
    """Make a container, add so many values, and remove them; call `see` after each step."""
    grown = kind.make()
    for value in islice(kind.values, count):
        kind.add(grown, value)
        see(grown)
    while grown:
        kind.remove(grown)
        see(grown)


def allocated_bytes(kind: Kind, count: int) -> int:
    """Return the bytes of all blocks that `fill_and_empty` allocates: a new one with each change of the size."""
    empty = sys.getsizeof(kind.make())
    sizes = [empty]
    fill_and_empty(kind, count, lambda grown: sizes.append(sys.getsizeof(grown)))
    return sum(size - empty for before, size in pairwise(sizes) if size != before) + empty * (not kind.is_reused)


def plan_round(choose: random.Random, kinds: list[Kind]) -> tuple[list[tuple[Kind, int]], int]:
    """Return arguments of `fill_and_empty`, and the bytes that these calls allocate: no more than samples have room."""
    calls, planned = [], 0
    while planned < ROUND_BYTES:
        calls.append((kind := choose.choice(kinds), choose.randint(*kind.counts)))
        planned += allocated_bytes(*calls[-1])
    return calls, planned


SEEN = [name for name, kind in KINDS.items() if kind.is_seen]


@pytest.mark.parametrize("names", [*([name] for name in SEEN), SEEN], ids="+".join)
def test_allocations_and_reallocations_of_containers_add_up(names: list[str]) -> None:
    choose, kinds = random.Random(0), [KINDS[name] for name in names]
    rounds = [plan_round(choose, kinds) for _ in range(ROUNDS)]
    with sampling(SAMPLE_BYTES) as drained:
        for calls, _ in rounds:
            for call in calls:
                fill_and_empty(*call)
            drained.drain()
    assert drained.ticker.counters().allocations_lost == 0
    found = sum(each.event_amount for each in drained.of("fill_and_empty"))
    assert found == pytest.approx(sum(planned for _, planned in rounds), rel=0.03)  # a deviation is 0.5 %
