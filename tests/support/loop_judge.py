"""A judge of the correlation loop: each sent stack trace must be on its transaction, as often as it was sent.

    verdict = judge(answers, reports, spans, delay_ns=…, since_ns={pid: …})
    assert not verdict.wrong

Compares three independent sources: the transactions that the clients got as answers, the host agent's log of sent
messages, and the spans that a collector received. Pure. Imports nothing of the package.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ATTRIBUTE = "elastic.profiler_stack_trace_ids"


class Key(NamedTuple):
    """The ids of a transaction, in hexadecimal digits."""

    trace_id: str
    span_id: str


class Answer(NamedTuple):
    """The answer of the service to a client, with its transaction."""

    key: Key
    sampled: bool
    pid: int


class Report(NamedTuple):
    """A correlation message that was sent.

    Attributes:
        key: the transaction.
        stack: stack-trace id in hexadecimal digits.
        samples: number of samples.
        time_ns: lower bound of the time it was sent.
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
        texts: its stack-trace ids as received; None without the attribute.
    """

    key: Key
    end_ns: int
    texts: Sequence[str] | None


@dataclass
class LoopResult:
    """The fate of the samples.

    Attributes:
        wrong: violations, in words.
        sent: samples that were sent.
        written: samples on transactions.
        unsampled: samples of transactions that are not exported.
        late: samples that were sent when their transaction was not deferred (any more).
        unlogged: samples on transactions that are in no agent's log.
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
    """Return the messages in an agent's log."""
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
    """Return the spans in the records of `targets/receiver.py`."""
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
        answers: all transactions.
        reports: all sent messages.
        spans: all received spans.
        delay_ns: least time after its end for which a transaction is deferred.
        since_ns: by process, time from which its transactions are deferred; by default from the start.
        most_unlogged: limit of samples that killed agents may have sent without a log line.
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
    """Decode the ids on a span: base64url without padding, 16 bytes each."""
    stacks = []
    for text in span.texts or ():
        stack = urlsafe_b64decode(text + "==") if len(text) == 22 and not set(text) & set("+/=") else b""
        if len(stack) != 16:
            verdict.wrong.append(f"{span} has {text!r}, which is no stack-trace id")
        stacks.append(stack.hex())
    if span.texts is not None and not span.texts:
        verdict.wrong.append(f"{span} has the attribute and nothing in it")
    return stacks
