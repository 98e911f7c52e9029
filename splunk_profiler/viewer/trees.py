"""Sums of weighted stacks: call trees, and the top table. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from splunk_profiler.viewer.model import TopRow, TreeNode, Weighted

SMALL = -1  # in place of a function: what was pruned


def call_tree(stacks: Iterable[Weighted], *, inverted: bool = False) -> list[TreeNode]:
    """Return the nodes of a tree, parents before children; the first is the root, without a function.

    Below the root of an inverted tree are the leaves of stacks, and below each its callers.
    """
    nodes = [TreeNode(-1, SMALL, 0)]
    children: dict[tuple[int, int], int] = {}
    for stack, weight in stacks:
        place = 0
        nodes[0].total += weight
        for frame in reversed(stack) if inverted else stack:
            child = children.setdefault((place, frame.function), len(nodes))
            if child == len(nodes):
                nodes.append(TreeNode(place, frame.function, frame.line))
            place = child
            nodes[place].total += weight
        nodes[place].own += weight
    return nodes


def prune(nodes: list[TreeNode], max_nodes: int) -> list[TreeNode]:
    """Keep the heaviest nodes, and sum up their other children in one node `SMALL` each."""
    if len(nodes) <= max_nodes:
        return nodes
    ranked = sorted(range(1, len(nodes)), key=lambda place: (-nodes[place].total, place))
    kept = {0, *ranked[: max_nodes - 1]}  # no child is heavier than its parent, nor does it come before it
    places: dict[int, int] = {}
    result: list[TreeNode] = []
    small: dict[int, TreeNode] = {}
    for place, node in enumerate(nodes):
        if place in kept:
            places[place] = len(result)
            result.append(TreeNode(places.get(node.parent, -1), node.function, node.line, node.total, node.own))
        elif node.parent in kept:
            parent = places[node.parent]
            rest = small.setdefault(parent, TreeNode(parent, SMALL, 0))
            rest.total += node.total
            rest.own += node.total
    return [*result, *small.values()]


def top_table(stacks: Iterable[Weighted]) -> list[TopRow]:
    """Return the functions, with the most of their own first."""
    own: dict[int, int] = {}
    total: dict[int, int] = {}
    lines: dict[int, int] = {}
    for stack, weight in stacks:
        if not stack:
            continue
        leaf = stack[-1].function
        own[leaf] = own.get(leaf, 0) + weight
        nearest = {frame.function: frame.line for frame in stack}
        for function, line in nearest.items():
            total[function] = total.get(function, 0) + weight
            lines.setdefault(function, line)
    rows = [TopRow(function, lines[function], own.get(function, 0), weight) for function, weight in total.items()]
    return sorted(rows, key=lambda row: (-row.own, -row.total, row.function))
