"""Judges the correlation loop: every stack trace that was sent has to be on its transaction, as often as it was sent.

    verdict = judge(answers, reports, spans, delay_ns=…, since_ns={pid: …})
    assert not verdict.wrong

Three sides are compared that know nothing of each other: the clients, who were told which transaction served them; the
host agent's log of what it sent; the spans that a collector received. Pure. Imports nothing of the package.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ATTRIBUTE = "elastic.profiler_stack_trace_ids"


class Key(NamedTuple):
    """Which transaction, in hexadecimal digits."""

    trace_id: str
    span_id: str


class Answer(NamedTuple):
    """What the service said to a client of the transaction that served it."""

    key: Key
    sampled: bool
    pid: int


class Report(NamedTuple):
    """A correlation message that was sent.

    Attributes:
        key: the transaction.
        stack: stack-trace id in hexadecimal digits.
        samples: how many it stands for.
        time_ns: not before this it was sent.
    """

    key: Key
    stack: str
    samples: int
    time_ns: int


class ExportedSpan(NamedTuple):
    """A span that was received.

    Attributes:
        key: its ids.
        end_ns: when it ended.
        texts: the stack-trace ids on it as they are; None without the attribute.
    """

    key: Key
    end_ns: int
    texts: Sequence[str] | None


@dataclass
class LoopResult:
    """What became of the samples.

    Attributes:
        wrong: what must not be, in words.
        sent: samples that were sent.
        written: samples on transactions.
        unsampled: samples of transactions that are exported by nobody.
        late: samples that were sent when their transaction did not wait for them (any more).
        unlogged: samples on transactions that no agent says it has sent.
        sent_before_end, sent_after_end, sent_on_both_sides: transactions all of whose messages were sent before their
            end; after it; or some before and some after.
    """

    wrong: list[str] = field(default_factory=list)
    sent: int = 0
    written: int = 0
    unsampled: int = 0
    late: int = 0
    unlogged: int = 0
    sent_before_end: int = 0
    sent_after_end: int = 0
    sent_on_both_sides: int = 0


def reported(events: Iterable[Mapping[str, Any]]) -> list[Report]:
    """The messages in an agent's log."""
    return [
        Report(
            Key(event["trace_id"], event["transaction_id"]),
            event["stack_trace_id"],
            event["count"],
            event["time_unix_nano"],
        )
        for event in events
        if event["event"] == "sent"
    ]


def exported(spans: Iterable[Mapping[str, Any]]) -> list[ExportedSpan]:
    """Spans as `targets/receiver.py` describes them."""
    return [
        ExportedSpan(Key(span["trace_id"], span["span_id"]), span["end_ns"], span["attributes"].get(ATTRIBUTE))
        for span in spans
    ]


def judge(
    answers: Sequence[Answer],
    reports: Sequence[Report],
    spans: Sequence[ExportedSpan],
    *,
    delay_ns: int,
    since_ns: Mapping[int, int] | None = None,
    most_unlogged: int = 0,
) -> LoopResult:
    """Compare the three sides.

    Args:
        answers: every transaction that there was.
        reports: every message that was sent.
        spans: every span that was received.
        delay_ns: how long after its end a transaction waits at least for what is sent.
        since_ns: by process, from when on its transactions wait; from the start on if it is not there.
        most_unlogged: samples that agents may have sent without having said so, because they were killed.
    """
    verdict = LoopResult()
    sampled = {answer.key: answer for answer in answers if answer.sampled}
    unsampled = {answer.key for answer in answers if not answer.sampled}
    known = _by_key(verdict, spans, sampled)
    sent: dict[Key, list[Report]] = {}
    for report in reports:
        verdict.sent += report.samples
        if report.key in unsampled:
            verdict.unsampled += report.samples
        elif report.key not in sampled:
            verdict.wrong.append(f"{report} is of no transaction that there was")
        else:
            sent.setdefault(report.key, []).append(report)
    for key, answer in sampled.items():
        span = known.get(key)
        if span is None:
            verdict.wrong.append(f"{answer} was not exported")
        else:
            waits = span.end_ns > (since_ns or {}).get(answer.pid, 0)
            _judge_one(verdict, span, sent.get(key, []), span.end_ns + delay_ns if waits else 0)
    if verdict.unlogged > most_unlogged:
        verdict.wrong.append(f"{verdict.unlogged} stack traces were sent by nobody; {most_unlogged} may have been")
    return verdict


def _by_key(
    verdict: LoopResult, spans: Sequence[ExportedSpan], sampled: Mapping[Key, Answer]
) -> dict[Key, ExportedSpan]:
    known: dict[Key, ExportedSpan] = {}
    for span in spans:
        if span.key in known:
            verdict.wrong.append(f"{span} was exported twice")
        if span.texts is not None and span.key not in sampled:
            verdict.wrong.append(f"{span} has stack traces and is no transaction")
        known[span.key] = span
    return known


def _judge_one(verdict: LoopResult, span: ExportedSpan, reports: Sequence[Report], until_ns: int) -> None:
    sent: Counter[str] = Counter()
    in_time: Counter[str] = Counter()
    for report in reports:
        sent[report.stack] += report.samples
        in_time[report.stack] += report.samples if report.time_ns <= until_ns else 0
    written = Counter(_decoded(verdict, span))
    missing = in_time - written
    if missing:
        verdict.wrong.append(f"{span} lacks {dict(missing)} of {reports}")
    verdict.written += written.total()
    verdict.unlogged += (written - sent).total()
    verdict.late += (sent - written - missing).total()
    before = sum(report.time_ns <= span.end_ns for report in reports)
    if reports:
        verdict.sent_before_end += before == len(reports)
        verdict.sent_after_end += before == 0
        verdict.sent_on_both_sides += 0 < before < len(reports)


def _decoded(verdict: LoopResult, span: ExportedSpan) -> list[str]:
    """The ids on a span; base64 for URLs and without padding, each of 16 bytes."""
    stacks = []
    for text in span.texts or ():
        stack = urlsafe_b64decode(text + "==") if len(text) == 22 and not set(text) & set("+/=") else b""
        if len(stack) != 16:
            verdict.wrong.append(f"{span} has {text!r}, which is no stack-trace id")
        stacks.append(stack.hex())
    if span.texts is not None and not span.texts:
        verdict.wrong.append(f"{span} has the attribute and nothing in it")
    return stacks
