"""Trees of weighted stacks and of spans, the top table, and the lines of a function. Pure.

Weights are arrays by the stack's index in the table; sums are exact up to 2 to the 53rd.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np

from splunk_profiler.viewer.model import Span, SpanRow, TopRow
from splunk_profiler.viewer.stacks import BuiltStacks, Numbers, Stacks

SMALL = -1  # in place of a function: what was pruned
ALL = 1 << 62  # nodes


class Tree(NamedTuple):
    """The nodes of a call tree, each field an array: all that is below one has `total`, and what ends at it `own`.

    `before` is its total in the baseline.
    """

    parent: Numbers
    function: Numbers
    line: Numbers
    total: Numbers
    own: Numbers
    before: Numbers


class _Parts(NamedTuple):
    """Parts of stacks on the way into a tree, each field an array: those that begin alike are side by side.

    `position` is of the first frame, `common` how many frames are those of the part before.
    """

    position: Numbers
    length: Numbers
    common: Numbers
    weight: Numbers
    before: Numbers


_Rows = TypeVar("_Rows", Tree, _Parts)


def call_tree(
    stacks: Stacks,
    weights: Numbers,
    *,
    inverted: bool = False,
    before: Numbers | None = None,
    function: int | None = None,
    max_nodes: int = ALL,
) -> Tree:
    """Return the nodes of a tree; the first is the root, without a function.

    The children of a node are side by side after it, the heaviest first.

    Args:
        stacks: the table.
        weights: of each stack.
        inverted: below the root are the leaves of stacks, and below each its callers.
        before: weights of the baseline; nodes that only it has are left out.
        function: only the parts of stacks from its outermost call on, or up to it if `inverted`.
        max_nodes: so many at most; the heaviest stay, the other children of each are summed up in one node `SMALL`.
    """
    parts = _parts(stacks, weights, np.zeros_like(weights) if before is None else before, inverted, function)
    table, step = stacks.built(), -1 if inverted else 1
    own = parts.weight[parts.length == 0].sum()
    levels = [Tree(*map(np.array, ([-1], [SMALL], [0], [parts.weight.sum()], [own], [parts.before.sum()])))]
    pruned: list[Tree] = []
    heaviest, lightest = levels[0].total, max(1, _lightest(parts, max_nodes))
    node = np.zeros(len(parts.position), np.int64)  # that each part has reached
    begin, end = 0, 1  # nodes of the last level
    for depth in count():
        ended = parts.length == depth
        if ended.all():
            break
        if ended.any():
            parts, node = _chosen(parts, ~ended), node[~ended]
        first = np.flatnonzero(parts.common <= depth)
        position = parts.position[first] + step * depth
        of_leaves = np.where(parts.length == depth + 1, parts.weight, 0)
        total, own, earlier = (np.add.reduceat(each, first) for each in (parts.weight, of_leaves, parts.before))
        children = Tree(node[first], table.functions[position], table.lines[position], total, own, earlier)
        # Of nodes that are lighter than `max_nodes` others none stays, nor what is below them; see `_prune`.
        kept = total >= lightest
        levels.append(_chosen(children, kept))
        pruned.append(_chosen(children, ~kept & (total > 0)))
        heaviest = np.concatenate([heaviest, total[kept]])
        if len(heaviest) > 2 * max_nodes:  # now and then, since it costs more than it spares
            heaviest = np.partition(heaviest, -max_nodes)[-max_nodes:]
            lightest = max(lightest, np.nextafter(heaviest[0], np.inf))  # of equal ones the first stay
        sizes = np.diff(first, append=len(node))
        if not kept.all():
            parts = _chosen(parts, np.repeat(kept, sizes))
        begin, end = end, end + len(levels[-1].total)
        node = np.repeat(np.arange(begin, end), sizes[kept])
    return _prune(_joined(levels), pruned, max_nodes)


def _parts(stacks: Stacks, weights: Numbers, before: Numbers, inverted: bool, function: int | None) -> _Parts:
    """Return the stacks that have any weight, or parts of them."""
    table = stacks.built()
    indexes, starts, ends = table.parts_of(function, inverted, (weights != 0) | (before != 0))
    length, position = ends - starts, ends - 1 if inverted else starts
    order, common = table.order(inverted) if function is None else table.sort(position, length, inverted)
    weight, before = weights[indexes[order]], before[indexes[order]]
    used = np.flatnonzero((weight != 0) | (before != 0))
    # What two have in common is the least that any neighbours between them have.
    common = np.minimum.reduceat(common[: used[-1] + 1], np.append(0, used[:-1] + 1)) if len(used) else used
    order = order[used]
    return _Parts(position[order], length[order], common, weight[used], before[used])


def _lightest(parts: _Parts, max_nodes: int) -> float:
    """Return a weight that `max_nodes` nodes have or exceed, to begin with: they are on the heaviest parts."""
    shared = np.maximum(parts.common, np.append(parts.common[1:], 0))  # with either neighbour
    by_weight = np.argsort(-parts.weight)
    nodes = np.cumsum((parts.length - shared)[by_weight])  # that only one of the heaviest parts has
    enough = np.searchsorted(nodes, max_nodes)
    return float(parts.weight[by_weight[enough]]) if enough < len(nodes) else 0.0


def _chosen(rows: _Rows, which: Numbers) -> _Rows:
    """Return those that are True."""
    indexes = np.flatnonzero(which)  # once for all fields: a mask is slower to take by
    return type(rows)(*(each.take(indexes) for each in rows))


def _joined(trees: Sequence[Tree]) -> Tree:
    return Tree(*map(np.concatenate, zip(*trees, strict=True)))


def _prune(tree: Tree, pruned: Sequence[Tree], max_nodes: int) -> Tree:
    """Keep the heaviest nodes, and sum up their other children, those of `pruned` too, in one node `SMALL` each.

    One that is alone there, and has nothing below it, stays itself.
    """
    order = np.argsort(-tree.total, kind="stable")  # no child is heavier than its parent, nor does it come before it
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    kept = ranks < _count_kept(ranks, tree.parent, pruned, max_nodes)
    indexes = np.cumsum(kept) - 1
    result = _chosen(tree, kept)
    result = result._replace(parent=np.where(result.parent < 0, -1, indexes[result.parent]))
    small = _joined([_chosen(tree, ~kept), *pruned])
    small = _chosen(small, kept[small.parent])
    parents, first, which, counts = np.unique(indexes[small.parent], True, True, True)
    total, before = (np.bincount(which, each, len(parents)) for each in (small.total, small.before))
    is_itself = (counts == 1) & (small.own == small.total)[first]
    function, line = np.where(is_itself, small.function[first], SMALL), np.where(is_itself, small.line[first], 0)
    return _sorted(_joined([result, Tree(parents, function, line, total, total, before)]))


def _count_kept(ranks: Numbers, parent: Numbers, pruned: Sequence[Tree], max_nodes: int) -> int:
    """Return how many of the heaviest nodes there are room for, with one more for each that has other children.

    Args:
        ranks: the index of each node among the heaviest.
        parent: of each node.
        pruned: children of them that are not kept.
        max_nodes: the room.
    """
    count = len(ranks)
    last = np.zeros(count, np.int64)  # by rank, that of its last child
    np.maximum.at(last, ranks[parent[1:]], ranks[1:])
    for each in pruned:
        last[ranks[each.parent]] = count
    above = np.flatnonzero(last)
    # A node has other children from where it is kept until all of them are.
    begins, ends = (np.bincount(each + 1, minlength=count + 2) for each in (above, last[above]))
    needed = np.arange(count + 1) + np.cumsum(begins - ends)[:-1]
    return max(1, int(np.flatnonzero(needed <= max_nodes)[-1]))


def _sorted(tree: Tree) -> Tree:
    """Put the children of each node side by side, the heaviest first; each stays after its parent."""
    order = np.lexsort((-tree.total, tree.parent))
    indexes = np.empty_like(order)
    indexes[order] = np.arange(len(order))
    tree = Tree(*(each[order] for each in tree))
    return tree._replace(parent=np.where(tree.parent < 0, -1, indexes[tree.parent]))


def top_table(
    stacks: Stacks, weights: Numbers, before: Numbers | None = None, scale: float = 1, *, by_total: bool = False
) -> list[TopRow]:
    """Return the functions, the most of their own, or in all, first; above `before` times `scale`, or below."""
    table = stacks.built()
    own, total = _sum_functions(table, weights)
    nothing = np.zeros_like(own), np.zeros_like(own)
    own_before, total_before = nothing if before is None else _sum_functions(table, before * scale)
    found = np.flatnonzero((total != 0) | (total_before != 0))
    changes = [-np.abs(total - total_before)[found], -np.abs(own - own_before)[found]]
    ranked = found[np.lexsort((found, *(reversed(changes) if by_total else changes)))]
    of_functions = (table.function_lines, own, total, own_before, total_before)
    columns: list[Numbers] = [ranked, *(each[ranked] for each in of_functions)]
    return list(map(TopRow._make, zip(*(each.tolist() for each in columns), strict=True)))


def _sum_functions(table: BuiltStacks, weights: Numbers) -> tuple[Numbers, Numbers]:
    """Return the weights of functions at the leaf, and anywhere in a stack, recursion counted once."""
    has_frames = np.diff(table.starts) > 0
    leaves = table.functions[table.starts[1:][has_frames] - 1]
    own = np.bincount(leaves, weights[has_frames], table.function_count)
    return own, np.bincount(table.member_functions, np.repeat(weights, table.member_counts), table.function_count)


def line_weights(stacks: Stacks, weights: Numbers, function: int) -> dict[int, tuple[int, ...]]:
    """Return the weights of the lines of a function, by number: at the leaf, and anywhere, recursion counted once."""
    table = stacks.built()
    at = np.flatnonzero(table.functions == function)
    of_stack = weights[table.stack_of[at]]
    at, of_stack = at[of_stack != 0], of_stack[of_stack != 0]
    lines, which = np.unique(table.lines[at], return_inverse=True)
    is_leaf = at == table.starts[table.stack_of[at] + 1] - 1
    own = np.bincount(which[is_leaf], of_stack[is_leaf], len(lines))
    once = np.unique(table.stack_of[at].astype(np.int64) * (len(lines) + 1) + which, return_index=True)[1]
    total = np.bincount(which[once], of_stack[once], len(lines))
    return {line: (int(own[index]), int(total[index])) for index, line in enumerate(lines.tolist())}


def span_tree(spans: Iterable[Span]) -> list[SpanRow]:
    """Return spans by their start, children below their parent; those whose parent is not there are roots."""
    by_id = {span.id: span for span in sorted(spans, key=lambda span: span.start_ns)}
    children: dict[str, list[Span]] = {}
    for span in by_id.values():
        children.setdefault(span.parent if span.parent in by_id else "", []).append(span)
    rows: list[SpanRow] = []
    left = dict(by_id)
    open_rows = [SpanRow(0, span) for span in reversed(children.pop("", []))]
    while left:
        if not open_rows:  # what is left are parents of themselves
            open_rows.append(SpanRow(0, next(iter(left.values()))))
        row = open_rows.pop()
        if left.pop(row.span.id, None) is not None:
            rows.append(row)
            open_rows += [SpanRow(row.depth + 1, span) for span in reversed(children.pop(row.span.id, []))]
    return rows
