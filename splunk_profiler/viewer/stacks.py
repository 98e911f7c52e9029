"""A table of stacks, each kept once: the frames of all in a row, so that a sum over them is a few operations."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from splunk_profiler.viewer.model import Frame

Numbers = NDArray[Any]
_MERGE_RATIO = 64  # in a table so many times as long as what is new, that is merged; else all is sorted again


class WeightedStacks(NamedTuple):
    """Stacks, root first, and their weights; the frames of all are in a row, stack n between `starts` n and n + 1."""

    functions: Numbers
    lines: Numbers
    starts: Numbers
    weights: Numbers

    def of_each(self, frames: Numbers) -> Iterator[list[Any]]:
        """Yield for each stack its part of an array that is by frame."""
        for start, end in pairwise(self.starts.tolist()):
            yield frames[start:end].tolist()


class Stacks:
    """Stacks by their index in the table; frames are root first."""

    def __init__(self) -> None:
        self._indexes: dict[bytes, int] = {}
        self._frames = array("i")  # function and line by turns
        self._starts = array("q", (0,))
        self._built: BuiltStacks | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    def index(self, packed: bytes) -> int:
        """Return the index of a stack, which is added if it is not there.

        Args:
            packed: its frames, each a pair of 32-bit numbers: function and line.
        """
        found = self._indexes.setdefault(packed, len(self))
        if found == len(self):
            self._frames.frombytes(packed)
            self._starts.append(len(self._frames) // 2)
        return found

    def frames(self, index: int) -> tuple[Frame, ...]:
        """Return the frames of a stack."""
        numbers = self._frames[2 * self._starts[index] : 2 * self._starts[index + 1]]
        return tuple(map(Frame, numbers[::2], numbers[1::2]))

    def packed(self, index: int) -> bytes:
        """Return the frames of a stack as `index` takes them."""
        return self._frames[2 * self._starts[index] : 2 * self._starts[index + 1]].tobytes()

    def weighted(self, weights: Numbers, function: int | None = None, inverted: bool = False) -> WeightedStacks:
        """Return the stacks that have a weight.

        Args:
            weights: of each stack.
            function: only the parts of stacks from its outermost call on.
            inverted: up to that call in place of it.
        """
        table = self.built()
        indexes, starts, ends = table.parts_of(function, inverted, weights != 0)
        used = np.flatnonzero(weights[indexes])
        lengths, weight = (ends - starts)[used], weights[indexes[used]].astype(np.int64)
        new_starts = np.cumsum(np.append(0, lengths))
        positions = np.arange(new_starts[-1]) + np.repeat(starts[used] - new_starts[:-1], lengths)
        return WeightedStacks(table.functions[positions], table.lines[positions], new_starts, weight)

    def prepare(self) -> None:
        """Do what sums need, so that no question has to wait for it."""
        built = self.built()
        for inverted in (False, True):
            built.order(inverted)

    def built(self) -> BuiltStacks:
        """Return the table as arrays."""
        known = 0 if self._built is None else len(self._built)
        if self._built is None or known < len(self):
            can_merge = (len(self) - known) * _MERGE_RATIO < known
            self._built = BuiltStacks(self._frames, self._starts, self._built if can_merge else None)
        return self._built


class BuiltStacks:
    """The table as arrays; `functions` and `lines` are by position, stack n is between `starts` n and n + 1.

    Attributes:
        stack_of: the stack of a position.
        member_functions: the functions of each stack, once, the stacks one after the other.
        member_counts: how many functions each stack has there.
        function_lines: the first line of each function that any stack has.
    """

    def __init__(self, frames: array[int], starts: array[int], before: BuiltStacks | None = None) -> None:
        """`before` is an earlier state of the table: what it has is taken from it."""
        first = 0 if before is None else len(before)
        pairs = np.array(frames[2 * starts[first] :], np.int32).reshape(-1, 2)
        self.functions, self.lines = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
        self.starts = np.array(starts, np.int64)
        self.stack_of = np.repeat(np.arange(first, len(self), dtype=np.int32), np.diff(self.starts[first:]))
        self.function_count = int(self.functions.max(initial=-1)) + 1
        keys = self.stack_of.astype(np.int64) * max(self.function_count, 1) + self.functions
        members = np.unique(keys, return_index=True)[1]
        self.member_functions = self.functions[members].astype(np.intp)  # the type that sums are made by
        self.member_counts = np.bincount(self.stack_of[members] - first, minlength=len(self) - first)
        self.function_lines = np.full(self.function_count, np.iinfo(np.int32).max, np.int32)
        np.minimum.at(self.function_lines, self.functions, self.lines)
        self._orders: dict[bool, tuple[Numbers, Numbers]] = {}
        if before is not None:
            self._take(before)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def _take(self, before: BuiltStacks) -> None:
        """Put what was known before the arrays of what is new."""
        for name in ("functions", "lines", "stack_of", "member_functions", "member_counts"):
            setattr(self, name, np.concatenate([getattr(before, name), getattr(self, name)]))
        lines = np.full(max(before.function_count, self.function_count), np.iinfo(np.int32).max, np.int32)
        for each in (before.function_lines, self.function_lines):
            np.minimum(lines[: len(each)], each, out=lines[: len(each)])
        self.function_lines, self.function_count = lines, len(lines)
        for inverted in before._orders:
            self._orders[inverted] = self._merge(before, inverted)

    def _merge(self, before: BuiltStacks, inverted: bool) -> tuple[Numbers, Numbers]:
        """Return `sort` of the whole stacks from that of those before."""

        def key(index: int) -> bytes:
            return self._functions_of(index, inverted).astype(">u4").tobytes()

        order, common = before._orders[inverted]
        new = sorted(range(len(before), len(self)), key=key)
        at = [bisect_right(order, key(index), key=key) for index in new]
        order, common = np.insert(order, at, new), np.insert(common, at, 0)
        moved = np.array(at) + np.arange(len(at))
        for index in np.unique(np.append(moved, moved + 1)).tolist():
            if 0 < index < len(order):
                one, other = (self._functions_of(order[each], inverted) for each in (index - 1, index))
                shared = min(len(one), len(other))
                common[index] = next(iter(np.flatnonzero(one[:shared] != other[:shared])), shared)
        return order, common

    def _functions_of(self, index: int, inverted: bool) -> Numbers:
        functions = self.functions[self.starts[index] : self.starts[index + 1]]
        return functions[::-1] if inverted else functions

    def parts_of(self, function: int | None, inverted: bool, used: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return indexes of stacks, and where a part of each begins and ends.

        Args:
            function: the part from its outermost call on, of `used` stacks that have it; None for all of each stack.
            inverted: up to that call in place of it.
            used: True for each stack that is wanted.
        """
        if function is None:
            return np.arange(len(self)), self.starts[:-1], self.starts[1:]
        at = np.flatnonzero(self.functions == function)
        at = at[used[self.stack_of[at]]]
        indexes, first = np.unique(self.stack_of[at], return_index=True)
        outermost = at[first]
        return (
            (indexes, self.starts[indexes], outermost + 1)
            if inverted
            else (indexes, outermost, self.starts[indexes + 1])
        )

    def order(self, inverted: bool) -> tuple[Numbers, Numbers]:
        """Return `sort` of the whole stacks, from the root on, or from the leaf on if `inverted`."""
        if inverted not in self._orders:
            position = self.starts[1:] - 1 if inverted else self.starts[:-1]
            self._orders[inverted] = self.sort(position, np.diff(self.starts), inverted)
        return self._orders[inverted]

    def sort(self, position: Numbers, length: Numbers, inverted: bool) -> tuple[Numbers, Numbers]:
        """Sort parts of stacks by one function after the other, so that those that begin alike are side by side.

        Args:
            position: where each begins.
            length: how many frames each has.
            inverted: they go on towards the root.

        Returns:
            Their order, and how many functions each has in common with the one before.
        """
        order = np.arange(len(length))
        common = np.full(len(length), -1)
        step = -1 if inverted else 1
        functions = self.functions if len(self.functions) else np.full(1, -1)  # `take` clips to no end of nothing
        indexes = np.arange(len(length))  # in the order, of those that are alike
        group = np.zeros(len(length), np.int64)
        for depth in range(int(length.max(initial=0)) + 1):
            part = order[indexes]
            function = np.where(length[part] > depth, functions.take(position[part] + step * depth, mode="clip"), -1)
            keys = group * (self.function_count + 1) + function + 1
            by_key = np.argsort(keys, kind="stable")
            order[indexes] = part[by_key]
            changes = np.diff(keys[by_key], prepend=-1) != 0
            common[indexes[changes & (common[indexes] < 0)]] = depth
            group = np.cumsum(changes) - 1
            is_alike = (np.bincount(group) > 1)[group] & (function[by_key] >= 0)
            indexes, group = indexes[is_alike], group[is_alike]
        return order, np.where(common < 0, length[order], common)
