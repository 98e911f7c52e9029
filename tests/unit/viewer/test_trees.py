"""Tests of the sums of stacks: trees, the top table, lines, and trees of spans."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby
from operator import itemgetter

import numpy as np
import pytest

from splunk_profiler.viewer.model import Frame, Span, SpanRow, TopRow
from splunk_profiler.viewer.stacks import Numbers, Stacks
from splunk_profiler.viewer.trees import SMALL, Tree, call_tree, line_weights, span_tree, top_table

MAIN, SEARCH, RANK = Frame(0, 1), Frame(1, 20), Frame(2, 30)
Weights = dict[tuple[Frame, ...], int]
WEIGHTS: Weights = {(MAIN, SEARCH): 3, (MAIN, SEARCH, RANK): 5, (MAIN, RANK): 1, (): 1}


class Weighed:
    """A table of stacks, and the weights of two selections of them."""

    def __init__(
        self, weights: dict[tuple[Frame, ...], int], before: dict[tuple[Frame, ...], int] | None = None
    ) -> None:
        self.stacks = Stacks()
        places = {
            stack: self.stacks.index(np.array(stack, np.int32).tobytes()) for stack in [*weights, *(before or {})]
        }
        self.weights, self.before = np.zeros(len(self.stacks)), np.zeros(len(self.stacks))
        for sums, chosen in ((self.weights, weights), (self.before, before or {})):
            for stack, weight in chosen.items():
                sums[places[stack]] = weight


def nodes(tree: Tree) -> list[tuple[int, ...]]:
    """Return parent, function, line, total and own of each node."""
    return [tuple(map(int, node)) for node in zip(*tree[:5], strict=True)]


def paths(tree: Tree, field: Numbers) -> dict[tuple[int, ...], int]:
    """Return a field by the functions from the root to the node."""
    found: list[tuple[int, ...]] = [()]
    for parent, function in zip(tree.parent[1:].tolist(), tree.function[1:].tolist(), strict=True):
        found.append((*found[parent], function))
    assert len(set(found)) == len(found)
    return dict(zip(found, map(int, field), strict=True))


def test_a_call_tree_has_each_path_once() -> None:
    weighed = Weighed(WEIGHTS)
    assert nodes(call_tree(weighed.stacks, weighed.weights)) == [
        (-1, SMALL, 0, 10, 1),
        (0, 0, 1, 9, 0),
        (1, 1, 20, 8, 3),
        (1, 2, 30, 1, 1),
        (2, 2, 30, 5, 5),
    ]


def test_samples_without_any_frame_are_the_root_alone() -> None:
    weighed = Weighed({(): 4})
    for inverted in (False, True):
        assert nodes(call_tree(weighed.stacks, weighed.weights, inverted=inverted)) == [(-1, SMALL, 0, 4, 4)]
    assert top_table(weighed.stacks, weighed.weights) == []


def test_an_inverted_tree_begins_with_what_ran() -> None:
    weighed = Weighed(WEIGHTS)
    tree = call_tree(weighed.stacks, weighed.weights, inverted=True)
    assert [(function, total) for parent, function, _, total, _ in nodes(tree) if parent == 0] == [(2, 6), (1, 3)]


def test_pruning_loses_no_weight() -> None:
    weighed = Weighed(WEIGHTS)
    assert nodes(call_tree(weighed.stacks, weighed.weights, max_nodes=3)) == [
        (-1, SMALL, 0, 10, 1),
        (0, 0, 1, 9, 0),
        (1, SMALL, 0, 9, 9),
    ]


def test_a_leaf_that_would_be_summed_up_alone_stays_itself() -> None:
    weighed = Weighed({(MAIN,): 9, (SEARCH,): 4, (SEARCH, MAIN): 1, (RANK, MAIN): 2, (RANK, SEARCH): 2})
    assert nodes(call_tree(weighed.stacks, weighed.weights, max_nodes=6)) == [
        (-1, SMALL, 0, 18, 0),
        (0, 0, 1, 9, 9),
        (0, 1, 20, 5, 4),
        (0, 2, 30, 4, 0),
        (2, 0, 1, 1, 1),
        (3, SMALL, 0, 4, 4),
    ]


def test_a_tree_has_the_weights_of_its_baseline() -> None:
    weighed = Weighed(WEIGHTS, {(MAIN, SEARCH): 4, (MAIN, RANK, SEARCH): 2, (SEARCH,): 1})
    tree = call_tree(weighed.stacks, weighed.weights, before=weighed.before)
    assert paths(tree, tree.before) == {(): 7, (0,): 6, (0, 1): 4, (0, 2): 2, (0, 1, 2): 0}
    pruned = call_tree(weighed.stacks, weighed.weights, before=weighed.before, max_nodes=2)
    assert nodes(pruned)[-1] == (0, SMALL, 0, 9, 9)
    assert pruned.before[-1] == 6


def test_a_tree_begins_at_the_outermost_call_of_a_function() -> None:
    weighed = Weighed({(MAIN, SEARCH, RANK, SEARCH): 2, **WEIGHTS})
    callees = call_tree(weighed.stacks, weighed.weights, function=1)
    assert paths(callees, callees.total) == {(): 10, (1,): 10, (1, 2): 7, (1, 2, 1): 2}
    callers = call_tree(weighed.stacks, weighed.weights, function=2, inverted=True)
    assert paths(callers, callers.total) == {(): 8, (2,): 8, (2, 0): 1, (2, 1): 7, (2, 1, 0): 7}
    assert nodes(call_tree(weighed.stacks, weighed.weights, function=-1)) == [(-1, SMALL, 0, 0, 0)]


def some_stacks(chosen: random.Random) -> Weights:
    stacks: Weights = {}
    for _ in range(60):
        frames = tuple(Frame(chosen.randrange(4), chosen.randrange(3)) for _ in range(chosen.randrange(9)))
        stacks[frames] = chosen.randrange(9)
    return stacks


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("inverted", [False, True])
def test_any_tree_is_that_of_counting_one_stack_after_the_other(seed: int, inverted: bool) -> None:
    weights, before = some_stacks(random.Random(seed)), some_stacks(random.Random(-seed - 1))
    total, own, earlier = Counter[tuple[int, ...]](), Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for sums, stacks in ((total, weights), (earlier, before)):
        for stack, weight in stacks.items():
            path = tuple(frame.function for frame in (reversed(stack) if inverted else stack))
            sums.update({path[:length]: weight for length in range(len(path) + 1)})
            if stacks is weights:
                own[path] += weight
    weighed = Weighed(weights, before)
    tree = call_tree(weighed.stacks, weighed.weights, inverted=inverted, before=weighed.before)
    assert paths(tree, tree.total) == +total
    assert +Counter(paths(tree, tree.own)) == +own
    assert paths(tree, tree.before) == {path: earlier[path] for path in +total}

    pruned = call_tree(weighed.stacks, weighed.weights, inverted=inverted, before=weighed.before, max_nodes=20)
    is_small = pruned.function == SMALL
    is_small[0] = False
    assert len(is_small) in (19, 20)
    named, with_children = Counter(pruned.total[~is_small]), np.unique(pruned.parent[1:])
    assert max((Counter(total.values()) - named).elements()) <= pruned.total[with_children].min()
    assert pruned.own.sum() == tree.total[0]
    below = np.bincount(pruned.parent[1:], pruned.total[1:], len(is_small))
    assert (pruned.total == pruned.own + np.where(is_small, 0, below)).all()
    assert (pruned.parent < np.arange(len(is_small))).all()
    families = [[node[3] for node in each] for _, each in groupby(nodes(pruned), itemgetter(0))]
    assert len(families) == len(set(pruned.parent.tolist()))
    assert all(each == sorted(each, reverse=True) for each in families)


def test_the_top_table_begins_with_what_differs_most_and_has_what_is_gone() -> None:
    weighed = Weighed({(MAIN,): 5}, {(MAIN,): 8, (MAIN, RANK): 6})
    assert top_table(weighed.stacks, weighed.weights, weighed.before, 0.5) == [
        TopRow(2, 30, 0, 0, 3, 3),
        TopRow(0, 1, 5, 5, 4, 7),
    ]


def test_lines_of_a_function_count_once_in_each_stack() -> None:
    weighed = Weighed({(SEARCH, Frame(1, 25), SEARCH): 2, (SEARCH, RANK): 3, (MAIN,): 1})
    assert line_weights(weighed.stacks, weighed.weights, 1) == {20: (2, 5), 25: (0, 2)}
    assert line_weights(weighed.stacks, weighed.weights, 7) == {}


def test_recursion_counts_once_in_the_top_table() -> None:
    weighed = Weighed({(RANK, MAIN, RANK): 4, (MAIN,): 1})
    assert top_table(weighed.stacks, weighed.weights) == [TopRow(2, 30, 4, 4), TopRow(0, 1, 1, 5)]


def test_no_stacks_have_a_tree_of_nothing() -> None:
    stacks = Stacks()
    assert nodes(call_tree(stacks, np.zeros(0), inverted=True)) == [(-1, SMALL, 0, 0, 0)]
    assert top_table(stacks, np.zeros(0)) == []


def span(name: str, parent: str = "", start_ns: int = 0) -> Span:
    return Span(name, parent, name, "shop", start_ns, start_ns + 1, ())


def test_spans_come_below_their_parents_by_their_start() -> None:
    spans = [
        span("late", "root", 5),
        span("leaf", "late", 6),
        span("early", "root", 2),
        span("root"),
        span("lost", "?", 3),
    ]
    assert [(row.depth, row.span.name) for row in span_tree(spans)] == [
        (0, "root"),
        (1, "early"),
        (1, "late"),
        (2, "leaf"),
        (0, "lost"),
    ]


def test_spans_that_are_their_own_parents_are_shown_once() -> None:
    spans = [span("one", "two", 1), span("two", "one", 2), span("self", "self", 3)]
    assert span_tree(spans) == [SpanRow(0, spans[0]), SpanRow(1, spans[1]), SpanRow(0, spans[2])]
