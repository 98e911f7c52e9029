"""The question for the status of a host, and its answers."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from splunk_profiler.exporter_process.loop_blockers import LoopBlocker
from splunk_profiler.exporter_process.status import HostStatus, StatusError, ask, decode
from splunk_profiler.exporter_process.transport import (
    CHALLENGE_BYTES,
    LENGTH,
    MAX_MESSAGE_BYTES,
    PROOF_BYTES,
    QUESTION,
    REFUSAL,
    frame,
    prove_asker,
    prove_exporter,
    socket_name,
)
from splunk_profiler.model import RecordCounters

_INODE = 4711
_STATUS = HostStatus(
    age_s=61.5,
    has_profiles=True,
    counters=RecordCounters(recorded=9, delivered=5, queue_full=1, waiting=3),
    lost_snapshots=7,
    destination="http://collector:4317 (from OTEL_EXPORTER_OTLP_ENDPOINT)",
    delivered_age_s=None,
    failed_age_s=0.5,
    failure="no collector can be reached",
    period_ms=40,
    configured_period_ms=10,
    loop_blockers=[LoopBlocker("shop.render", "invoice", "GET /invoice", 3, 400_000_000)],
)

_WRONG_VALUES: list[dict[str, object]] = [
    {"age_s": "x"},
    {"age_s": None},
    {"age_s": math.nan},
    {"failed_age_s": -1},
    {"period_ms": 1 << 4000},
    {"failure": 7},
    {"counters": {"recorded": []}},
    {"loop_blockers": [{**_STATUS.loop_blockers[0]._asdict(), "blocks": "3"}]},
]


@contextmanager
def _exporter(*answers: bytes, knows_token: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """Listen as an exporter that gives these answers; yield its token and what it was asked."""
    token = os.urandom(16).hex()
    asked: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            challenge = stream.read(CHALLENGE_BYTES)
            connection.sendall(frame(prove_exporter(token if knows_token else "another", challenge)))
            question = stream.read(PROOF_BYTES + QUESTION.size)
            asked.append(question.removeprefix(prove_asker(token, challenge)))
            for answer in answers:
                connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_name(token, os.geteuid()))
        listener.listen()
        serving = threading.Thread(target=serve)
        serving.start()
        yield token, asked
        serving.join()


def _failure(*answers: bytes, knows_token: bool = True) -> str:
    with (
        _exporter(*answers, knows_token=knows_token) as (token, _),
        pytest.raises(StatusError) as raised,
    ):
        ask(token, socket_name(token, os.geteuid()), _INODE)
    return str(raised.value)


def test_answer_to_the_question_for_a_host_is_its_status() -> None:
    with _exporter(frame(_STATUS.encode())) as (token, asked):
        assert ask(token, socket_name(token, os.geteuid()), _INODE) == _STATUS
    assert asked == [QUESTION.pack(_INODE)]


def test_reason_why_there_is_no_status_is_said_in_words() -> None:
    assert _failure() == "it refuses the question, as other versions of splunk-profiler do"
    assert _failure(frame(_STATUS.encode())[:-1]) == "it refuses the question, as other versions of splunk-profiler do"
    assert _failure(frame(b"")) == "it knows nothing of this process, which may be new or about to end"
    with pytest.raises(StatusError, match="cannot be asked: Connection refused"):
        ask("", b"\0no exporter has this name", _INODE)


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"[]",
        b"7",
        b"\xff",
        b"[" * 60_000,
        b'{"counters": {"seen": 1}, "loop_blockers": []}',
        b'{"counters": [], "loop_blockers": {}}',
        *(json.dumps({**_STATUS.to_dict(), **wrong}).encode() for wrong in _WRONG_VALUES),
    ],
)
def test_answer_that_is_no_status_is_said_to_be_none(answer: bytes) -> None:
    with pytest.raises(StatusError, match="its answer is that of another version of splunk-profiler"):
        decode(answer)


def test_exporter_that_answers_byte_by_byte_is_not_waited_for() -> None:
    has_given_up = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        token = os.urandom(16).hex()
        listener.bind(socket_name(token, os.geteuid()))
        listener.listen()

        def dribble() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(LENGTH.pack(MAX_MESSAGE_BYTES))
                while not has_given_up.wait(0.01):
                    connection.sendall(b"x")

        dribbling = threading.Thread(target=dribble)
        dribbling.start()
        with pytest.raises(StatusError, match="it does not answer"):
            ask(token, socket_name(token, os.geteuid()), _INODE, timeout_s=0.2)
        has_given_up.set()
        dribbling.join()


def test_process_without_the_token_gets_no_proof_of_the_asker() -> None:
    with (
        _exporter(knows_token=False) as (token, asked),
        pytest.raises(StatusError, match="does not prove that it is an exporter"),
    ):
        ask(token, socket_name(token, os.geteuid()), _INODE)
    assert asked == [b""]


def test_exporter_of_an_earlier_version_without_room_says_why() -> None:
    token = os.urandom(16).hex()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_name(token, os.geteuid()))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            connection.sendall(frame(REFUSAL))
            connection.recv(CHALLENGE_BYTES)
            connection.close()

        refusing = threading.Thread(target=refuse)
        refusing.start()
        with pytest.raises(StatusError, match="serves 256 others already"):
            ask(token, socket_name(token, os.geteuid()), _INODE)
        refusing.join()


@pytest.mark.parametrize("character", ["\0", "\u202e", "\ud800", "\U0001f600"])
def test_longest_status_fits_one_message(character: str) -> None:
    text = character * 10_000
    blocker = LoopBlocker(text[:200], text[:200], text[:200], 1 << 63, 1 << 63)
    status = _STATUS._replace(destination=text, failure=text, loop_blockers=[blocker] * 10)
    answer = status.encode()
    assert len(answer) <= MAX_MESSAGE_BYTES
    assert decode(answer).failure == text[:1000]
