"""Tests of the sums of stacks and of selections."""

from __future__ import annotations

import pytest

from splunk_profiler.viewer.model import Facets, Frame, Sample, Selection, Span, SpanRow, TopRow, TreeNode, Weighted
from splunk_profiler.viewer.recording import OTHER, Recording
from splunk_profiler.viewer.trees import SMALL, call_tree, line_weights, prune, span_tree, through, top_table

MAIN, SEARCH, RANK = Frame(0, 1), Frame(1, 20), Frame(2, 30)
STACKS = [Weighted((MAIN, SEARCH), 3), Weighted((MAIN, SEARCH, RANK), 5), Weighted((MAIN, RANK), 1), Weighted((), 1)]


def recording(*samples: tuple[int, str, str, dict[str, int]]) -> Recording:
    found = Recording()
    found.units.update(cpu="nanoseconds", inuse_space="bytes")
    stack = found.stack_id((Frame(found.function_id("main", "main.py", "application"), 1),))
    for time_ns, process, endpoint, weights in samples:
        facets = Facets("shop", "", process, endpoint, "main", "application", "running", "", "")
        if "inuse_space" in weights:
            found.note_heap(process, time_ns)
        found.add(Sample(time_ns, stack, found.facets_id(facets), weights))
    return found


def test_a_call_tree_has_each_path_once() -> None:
    assert call_tree(STACKS) == [
        TreeNode(-1, SMALL, 0, 10, 1),
        TreeNode(0, 0, 1, 9),
        TreeNode(1, 1, 20, 8, 3),
        TreeNode(2, 2, 30, 5, 5),
        TreeNode(1, 2, 30, 1, 1),
    ]


def test_an_inverted_tree_begins_with_what_ran() -> None:
    roots = [(node.function, node.total) for node in call_tree(STACKS, inverted=True) if node.parent == 0]
    assert roots == [(1, 3), (2, 6)]


def test_pruning_loses_no_weight() -> None:
    nodes = prune(call_tree(STACKS), 3)
    assert nodes == [
        TreeNode(-1, SMALL, 0, 10, 1),
        TreeNode(0, 0, 1, 9),
        TreeNode(1, 1, 20, 8, 3),
        TreeNode(2, SMALL, 0, 5, 5),
        TreeNode(1, SMALL, 0, 1, 1),
    ]


def test_a_tree_has_the_weights_of_its_baseline() -> None:
    before = [Weighted((MAIN, SEARCH), 4), Weighted((MAIN, RANK, SEARCH), 2), Weighted((SEARCH,), 1)]
    assert [(node.function, node.before) for node in call_tree(STACKS, before=before)] == [
        (SMALL, 7),
        (0, 6),
        (1, 4),
        (2, 0),
        (2, 2),
    ]
    assert prune(call_tree(STACKS, before=before), 2)[-1] == TreeNode(1, SMALL, 0, 9, 9, 6)


def test_the_top_table_begins_with_what_differs_most_and_has_what_is_gone() -> None:
    assert top_table([Weighted((MAIN,), 5)], [Weighted((MAIN,), 8), Weighted((MAIN, RANK), 6)], 0.5) == [
        TopRow(2, 30, 0, 0, 3, 3),
        TopRow(0, 1, 5, 5, 4, 7),
    ]


def test_stacks_are_cut_at_the_outermost_call_of_a_function() -> None:
    stacks = [Weighted((MAIN, SEARCH, RANK, SEARCH), 2), *STACKS]
    assert through(stacks, 1, callers=False) == [
        Weighted((SEARCH, RANK, SEARCH), 2),
        Weighted((SEARCH,), 3),
        Weighted((SEARCH, RANK), 5),
    ]
    assert [each.weight for each in through(stacks, 2, callers=True)] == [2, 5, 1]
    assert through(stacks, 2, callers=True)[2].stack == (MAIN, RANK)


def test_what_is_in_use_is_not_scaled_by_time() -> None:
    found = recording((100, "7", "", {"cpu": 1}), (300, "7", "", {"inuse_space": 1}))
    assert found.duration_ns(Selection("cpu")) == 201
    assert found.duration_ns(Selection("cpu", 150, 250)) == 100
    assert found.duration_ns(Selection("inuse_space", 150, 250)) == 1


def test_lines_of_a_function_count_once_in_each_stack() -> None:
    other = Frame(1, 25)
    stacks = [Weighted((SEARCH, other, SEARCH), 2), Weighted((SEARCH, RANK), 3), Weighted((MAIN,), 1)]
    assert line_weights(stacks, 1) == {20: (2, 5), 25: (0, 2)}


def test_recursion_counts_once_in_the_top_table() -> None:
    assert top_table([Weighted((RANK, MAIN, RANK), 4), Weighted((MAIN,), 1)]) == [
        TopRow(2, 30, 4, 4),
        TopRow(0, 1, 1, 5),
    ]


def test_a_selection_is_by_time_and_by_any_of_the_values_of_each_facet() -> None:
    found = recording((10, "1", "a", {"cpu": 1}), (20, "1", "b", {"cpu": 2}), (30, "1", "c", {"cpu": 4}))
    assert found.weighted(Selection("cpu"))[0].weight == 7
    assert found.weighted(Selection("cpu", 10, 30))[0].weight == 3
    chosen = Selection("cpu", filters={"endpoint": frozenset({"a", "c"})})
    assert found.weighted(chosen)[0].weight == 5
    assert dict(found.facet_weights(chosen)["endpoint"]) == {"a": 1, "b": 2, "c": 4}
    assert dict(found.facet_weights(chosen)["process"]) == {"1": 5}
    with pytest.raises(ValueError, match="no facet colour"):
        found.select(Selection("cpu", filters={"colour": frozenset()}))


def test_of_what_is_in_use_the_last_profile_of_each_process_counts() -> None:
    found = recording(
        (10, "1", "a", {"inuse_space": 100}),
        (20, "1", "a", {"inuse_space": 7}),
        (20, "1", "b", {"inuse_space": 1}),
        (10, "2", "a", {"inuse_space": 30}),
    )
    assert found.weighted(Selection("inuse_space"))[0].weight == 38
    assert found.weighted(Selection("inuse_space", 0, 15))[0].weight == 130
    assert found.timeline(Selection("inuse_space"), "process", 2).series == [("1", [100, 8]), ("2", [30, 0])]


def test_a_timeline_shows_the_heaviest_values_and_sums_up_the_others() -> None:
    found = recording(*((10 + place, "1", f"endpoint {place}", {"cpu": 100 - place}) for place in range(10)))
    start_ns, step_ns, series = found.timeline(Selection("cpu", 12, 13), "endpoint", 5)
    assert (start_ns, step_ns) == (10, 2)
    assert [each.value for each in series] == [*(f"endpoint {place}" for place in range(8)), OTHER]
    assert series[-1].weights == [0, 0, 0, 0, 92 + 91]


def test_nothing_recorded_has_an_empty_timeline() -> None:
    assert not Recording().timeline(Selection("cpu"), "service", 10).series


def test_memory_that_the_last_profile_lacks_is_freed_whatever_is_chosen() -> None:
    found = recording((10, "1", "a", {"inuse_space": 100}), (20, "1", "b", {"inuse_space": 7}))
    assert found.weighted(Selection("inuse_space", filters={"endpoint": frozenset("a")})) == []
    assert sum(each.weight for each in found.weighted(Selection("inuse_space"))) == 7
    found.note_heap("1", 30)  # a profile without any
    assert found.weighted(Selection("inuse_space")) == []
    assert sum(each.weight for each in found.weighted(Selection("inuse_space", until_ns=20))) == 100
    assert found.timeline(Selection("inuse_space"), "endpoint", 2).series[0].weights == [100, 0]


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
