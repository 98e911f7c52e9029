"""The judge of the correlation loop has to find whatever is lost, added or misplaced, or the tests prove nothing."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

import pytest
from loop_judge import Answer, ExportedSpan, Key, LoopResult, Report, exported, judge, reported

ONE, TWO, NOT_SAMPLED = Key("0a" * 16, "01" * 8), Key("0a" * 16, "02" * 8), Key("0b" * 16, "03" * 8)
ANSWERS = [Answer(ONE, True, 7), Answer(TWO, True, 7), Answer(NOT_SAMPLED, False, 7)]
STACK, OTHER = "fb" * 16, "10" * 16
END_NS, DELAY_NS = 5_000, 1_000


def text(stack: str) -> str:
    return urlsafe_b64encode(bytes.fromhex(stack)).decode().rstrip("=")


def span(key: Key, *stacks: str) -> ExportedSpan:
    return ExportedSpan(key, END_NS, [text(stack) for stack in stacks] or None)


REPORTS = [
    Report(ONE, STACK, 2, END_NS - 10),
    Report(ONE, OTHER, 1, END_NS + 10),
    Report(TWO, STACK, 1, END_NS + DELAY_NS),
    Report(NOT_SAMPLED, STACK, 4, END_NS),
]
SPANS = [span(ONE, STACK, OTHER, STACK), span(TWO, STACK), span(Key("0a" * 16, "04" * 8))]


def verdict(
    answers: Sequence[Answer] = ANSWERS,
    reports: Sequence[Report] = REPORTS,
    spans: Sequence[ExportedSpan] = SPANS,
    **rules: Any,
) -> LoopResult:
    return judge(answers, reports, spans, delay_ns=DELAY_NS, **rules)


def with_first(first: ExportedSpan) -> LoopResult:
    return verdict(spans=[first, *SPANS[1:]])


def test_loop_that_keeps_everything_is_right_with_every_sample_counted() -> None:
    right = verdict()
    assert right.wrong == []
    assert (right.sent, right.written, right.unsampled, right.late, right.unlogged) == (8, 4, 4, 0, 0)
    assert (right.sent_before_end, right.sent_after_end, right.sent_on_both_sides) == (0, 1, 1)


@pytest.mark.parametrize(
    "stacks",
    [(STACK, OTHER), (STACK, STACK), (), (STACK, STACK, OTHER, OTHER), (STACK, STACK, OTHER, "77" * 16), (OTHER,) * 3],
    ids=["a count too low", "an id missing", "no attribute", "a count too high", "a foreign id", "the wrong counts"],
)
def test_a_transaction_with_other_stack_traces_than_were_sent_is_found(stacks: tuple[str, ...]) -> None:
    assert with_first(span(ONE, *stacks)).wrong


def test_stack_traces_that_changed_places_are_found() -> None:
    assert verdict(spans=[span(ONE, STACK), span(TWO, STACK, OTHER, STACK)]).wrong


def test_a_transaction_that_was_not_exported_or_twice_is_found() -> None:
    assert verdict(spans=SPANS[1:]).wrong
    assert verdict(spans=[*SPANS, SPANS[0]]).wrong
    assert verdict(reports=[], spans=[span(ONE), span(TWO), span(TWO)]).wrong


def test_stack_traces_on_what_is_no_sampled_transaction_are_found() -> None:
    assert verdict(spans=[*SPANS, span(NOT_SAMPLED, STACK)]).wrong
    assert verdict(spans=[*SPANS[:2], span(Key("0a" * 16, "04" * 8), STACK)]).wrong


def test_a_message_of_a_transaction_that_never_was_is_found() -> None:
    assert verdict(reports=[*REPORTS, Report(Key("0c" * 16, "01" * 8), STACK, 1, END_NS)]).wrong
    assert verdict(reports=[*REPORTS, Report(Key(ONE.trace_id, NOT_SAMPLED.span_id), STACK, 1, END_NS)]).wrong


def test_only_what_was_sent_too_late_may_be_missing_and_is_counted() -> None:
    late = Report(ONE, OTHER, 3, END_NS + DELAY_NS + 1)
    assert (verdict(reports=[*REPORTS, late]).wrong, verdict(reports=[*REPORTS, late]).late) == ([], 3)
    assert verdict(reports=[*REPORTS, late._replace(time_ns=END_NS + DELAY_NS)]).wrong
    assert with_first(span(ONE, *[STACK] * 2, *[OTHER] * 2)).wrong, "more than was sent in time, and nothing was late"
    early = verdict(reports=[*REPORTS, late], spans=[span(ONE, STACK, STACK, *[OTHER] * 3), *SPANS[1:]])
    assert (early.wrong, early.late) == ([], 1), "a transaction may wait longer than it has to"


def test_transaction_that_ended_before_a_profiler_came_may_lack_everything() -> None:
    lacking = [span(ONE), *SPANS[1:]]
    assert verdict(spans=lacking, since_ns={8: END_NS}).wrong
    assert verdict(spans=lacking, since_ns={7: END_NS - 1}).wrong
    forwarded = verdict(spans=lacking, since_ns={7: END_NS})
    assert (forwarded.wrong, forwarded.late, forwarded.written) == ([], 3, 1)


def test_messages_a_killed_agent_did_not_log_pass_up_to_their_number() -> None:
    assert verdict(reports=REPORTS[1:]).wrong
    assert verdict(reports=REPORTS[1:], most_unlogged=1).wrong
    unsaid = verdict(reports=REPORTS[1:], most_unlogged=2)
    assert (unsaid.wrong, unsaid.unlogged) == ([], 2)


@pytest.mark.parametrize("wrong", [text(STACK) + "==", text(STACK).replace("-", "+"), text(STACK)[:-1], "", STACK])
def test_ids_that_are_not_16_bytes_in_unpadded_url_base64_are_found(wrong: str) -> None:
    whole = [text(STACK), text(STACK), text(OTHER)]
    assert not with_first(replaced(whole)).wrong
    for place in range(3):
        assert with_first(replaced([*whole[:place], wrong, *whole[place + 1 :]])).wrong
        assert with_first(replaced([*whole, wrong])).wrong


def replaced(texts: list[str]) -> ExportedSpan:
    return SPANS[0]._replace(texts=texts)


def test_an_attribute_with_nothing_in_it_is_found() -> None:
    assert verdict(answers=ANSWERS[:1], reports=[], spans=[ExportedSpan(ONE, END_NS, [])]).wrong


def test_logs_of_agents_and_what_a_collector_received_are_understood() -> None:
    sent = {"event": "sent", "trace_id": "0a", "transaction_id": "01", "stack_trace_id": "fb", "count": 3, "pid": 1}
    lost = {**sent, "event": "lost", "reason": "queue-full"}
    assert reported([{**sent, "time_unix_nano": 9}, lost, {"event": "totals"}]) == [Report(Key("0a", "01"), "fb", 3, 9)]
    ids = {"trace_id": "0a", "span_id": "01", "end_ns": 9}
    with_attribute = {**ids, "attributes": {"elastic.profiler_stack_trace_ids": ["x"]}}
    assert exported([with_attribute, {**ids, "attributes": {}}]) == [
        ExportedSpan(Key("0a", "01"), 9, ["x"]),
        ExportedSpan(Key("0a", "01"), 9, None),
    ]
