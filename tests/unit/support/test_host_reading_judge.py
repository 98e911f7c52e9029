"""The judge of what host profilers read: it has to find every mixture, or the tests that rely on it prove nothing."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from derived_ids import KEY_BITS, WorkUnit
from host_reading import Judge, describe_mixed_reading

from splunk_profiler.inspector.model import CorrelationRecord, Label, ThreadReading

PIECE, OTHER = WorkUnit(3, 40, 1), WorkUnit(3, 47, 1)  # the other is not sampled
SLOTS, WORKERS = 64, 448
MOVING, OUTSIDE = 1 << KEY_BITS, 1 << KEY_BITS + 1


def record(piece: WorkUnit) -> CorrelationRecord:
    ids = f"{piece.trace_id:032x}", f"{piece.span_id:016x}", f"{piece.root.span_id:016x}"
    return CorrelationRecord(1, 1, 1, int(piece.sampled), *ids)


def labels(piece: WorkUnit) -> dict[str, str]:
    shown = record(piece)
    return {
        "trace_id": shown.trace_id,
        "span_id": shown.span_id,
        "local_root_span_id": shown.transaction_id,
        "route": piece.route,
    }


def reading(shown: CorrelationRecord | None, texts: dict[str, str]) -> ThreadReading:
    pairs = tuple(Label(key.encode(), value.encode()) for key, value in texts.items())
    return ThreadReading(7, "worker", shown, pairs)


def wrong(shown: CorrelationRecord | None, texts: dict[str, str], word: int, held: int = 0) -> list[str]:
    table = [0] * (2 * SLOTS + WORKERS)
    table[0], table[SLOTS], table[2 * SLOTS + PIECE.worker] = 7, word, held
    judge = Judge()
    judge.judge(reading(shown, texts), struct.pack(f"={len(table)}Q", *table))
    return judge.wrong


@pytest.mark.parametrize("piece", [WorkUnit(1, 0), WorkUnit(448, (1 << 40) - 1, 63), PIECE])
def test_a_piece_is_known_by_its_ids(piece: WorkUnit) -> None:
    assert WorkUnit.of_key(piece.key) == WorkUnit.of_span_id(piece.span_id) == piece
    assert WorkUnit.of_trace_id(piece.trace_id) == piece.root
    assert 0 < piece.span_id < 1 << 64
    assert 0 < piece.trace_id < 1 << 128


def test_neighbouring_pieces_differ_in_every_byte_of_their_ids() -> None:
    for sequence in range(1000):
        one, next_one = WorkUnit(1, sequence), WorkUnit(1, sequence + 1)
        pairs = zip(one.span_id.to_bytes(8, "big"), next_one.span_id.to_bytes(8, "big"), strict=True)
        assert sum(left == right for left, right in pairs) == 0


@pytest.mark.parametrize("field", ["trace_id", "span_id", "transaction_id", "trace_flags", "valid", "minor_version"])
def test_a_record_with_one_field_of_another_span_is_found(field: str) -> None:
    assert not describe_mixed_reading(reading(record(PIECE), labels(PIECE)))
    change: dict[str, Any] = {field: getattr(record(OTHER), field) if field not in ("valid", "minor_version") else 0}
    assert describe_mixed_reading(reading(replace(record(PIECE), **change), labels(PIECE)))


@pytest.mark.parametrize("key", ["trace_id", "span_id", "local_root_span_id", "route"])
def test_labels_of_which_one_is_of_another_span_are_found(key: str) -> None:
    assert describe_mixed_reading(reading(record(PIECE), {**labels(PIECE), key: labels(OTHER)[key]}))


def test_a_torn_id_is_found() -> None:
    one, other = record(PIECE).trace_id, record(OTHER).trace_id
    for cut in range(2, 32, 2):
        assert describe_mixed_reading(reading(replace(record(PIECE), trace_id=one[:cut] + other[cut:]), labels(PIECE)))


def test_the_span_of_other_work_is_found() -> None:
    right = record(PIECE), labels(PIECE)
    assert not wrong(*right, PIECE.key)
    assert wrong(*right, OTHER.key)
    assert wrong(*right, OUTSIDE)
    assert wrong(None, {}, PIECE.key)
    assert wrong(record(PIECE), {}, PIECE.key)
    assert wrong(None, labels(PIECE), PIECE.key)
    assert wrong(record(PIECE), {key: text for key, text in labels(PIECE).items() if key != "route"}, PIECE.key)
    assert not wrong(None, {}, OUTSIDE)


def test_in_the_middle_of_a_switch_only_what_is_open_may_be_shown() -> None:
    right = record(PIECE), labels(PIECE)
    assert not wrong(*right, MOVING, PIECE.root.key)
    assert not wrong(*right, MOVING | PIECE.key, 0)
    assert not wrong(None, labels(PIECE), MOVING, PIECE.root.key)
    assert not wrong(None, {}, MOVING)
    assert wrong(*right, MOVING, OTHER.root.key)
    assert wrong(*right, MOVING | OTHER.key, 0)
