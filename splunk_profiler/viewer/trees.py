"""Trees of weighted stacks and of spans, and the top table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from splunk_profiler.viewer.model import Span, SpanRow, TopRow, TreeNode, Weighted

SMALL = -1  # in place of a function: what was pruned


def call_tree(stacks: Iterable[Weighted], *, inverted: bool = False, before: Iterable[Weighted] = ()) -> list[TreeNode]:
    """Return the nodes of a tree, parents before children; the first is the root, without a function.

    Below the root of an inverted tree are the leaves of stacks, and below each its callers. Of `before`, the baseline,
    are the weights of nodes that the tree has.
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
    for stack, weight in before:
        place = 0
        nodes[0].before += weight
        for frame in reversed(stack) if inverted else stack:
            if (place, frame.function) not in children:
                break
            place = children[place, frame.function]
            nodes[place].before += weight
    return nodes


def through(stacks: Iterable[Weighted], function: int, *, callers: bool) -> list[Weighted]:
    """Return the parts of stacks from the outermost call of a function on, or up to it if `callers`."""
    parts = []
    for stack, weight in stacks:
        place = next((place for place, frame in enumerate(stack) if frame.function == function), None)
        if place is not None:
            parts.append(Weighted(stack[: place + 1] if callers else stack[place:], weight))
    return parts


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
            result.append(replace(node, parent=places.get(node.parent, -1)))
        elif node.parent in kept:
            parent = places[node.parent]
            rest = small.setdefault(parent, TreeNode(parent, SMALL, 0))
            rest.total += node.total
            rest.own += node.total
            rest.before += node.before
    return [*result, *small.values()]


def top_table(stacks: Iterable[Weighted], before: Iterable[Weighted] = (), scale: float = 1) -> list[TopRow]:
    """Return the functions, first those with the most of their own; above `before` times `scale`, or below."""
    lines: dict[int, int] = {}
    own, total = _sum_functions(stacks, lines)
    own_before, total_before = _sum_functions(before, lines)
    rows = [
        TopRow(
            function, line, own[function], total[function], own_before[function] * scale, total_before[function] * scale
        )
        for function, line in lines.items()
    ]
    return sorted(rows, key=lambda row: (-abs(row.own - row.own_before), -row.total, row.function))


def _sum_functions(stacks: Iterable[Weighted], lines: dict[int, int]) -> tuple[Counter[int], Counter[int]]:
    """Return the weights of functions at the leaf, and anywhere; put a line of each into `lines`."""
    own: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for stack, weight in stacks:
        if stack:
            own[stack[-1].function] += weight
        for function, line in {frame.function: frame.line for frame in stack}.items():
            total[function] += weight
            lines.setdefault(function, line)
    return own, total


def line_weights(stacks: Iterable[Weighted], function: int) -> dict[int, tuple[int, int]]:
    """Return the weights of the lines of a function, by number: at the leaf, and anywhere, recursion counted once."""
    own: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for stack, weight in stacks:
        for line in {frame.line for frame in stack if frame.function == function}:
            total[line] += weight
        if stack and stack[-1].function == function:
            own[stack[-1].line] += weight
    return {line: (own[line], total[line]) for line in sorted(total)}


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
