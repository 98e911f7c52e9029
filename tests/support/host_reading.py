"""A judge of published spans: compares them with the thread's own record of its work, read in the same stop.

`Judge.judge` compares one reading (of `table_reader.py`) with the table of `targets/native_marks.py`, which documents
the layout. A published span must always belong to one unit of work. Unless a context switch is running, it must be the
thread's current unit. Pure. Imports nothing of the package but the inspector's values.
"""

from __future__ import annotations

import struct
from collections import Counter

from derived_ids import KEY_BITS, WorkUnit

from splunk_profiler.inspector.model import CorrelationRecord, ThreadReading

_SLOTS, _WORKERS = 64, 448
_MOVING, _OUTSIDE = 1 << KEY_BITS, 1 << KEY_BITS + 1
_TABLE = struct.Struct(f"={2 * _SLOTS + _WORKERS}Q")
_IDS = (b"trace_id", b"span_id", b"local_root_span_id")
TABLE_BYTES = _TABLE.size


class Mismatch(Exception):  # noqa: N818  # a finding, not an error
    """The published span is wrong."""


def describe_mixed_reading(reading: ThreadReading) -> str:
    """Return how a reading mixes several units of work; empty if it does not."""
    try:
        _decode_record(reading.correlation)
        _decode_labels(reading)
    except Mismatch as finding:
        return f"{finding}: {reading.correlation} {reading.labels} of {reading.name}"
    return f"{reading.problems}" if reading.problems else ""


class Judge:
    """Counts of readings, and the wrong ones.

    Attributes:
        seen: readings of threads that say what they are at: "inside" a span, "outside" of spans, or "moving"; and of
            those that are "resting" and of others, "unknown".
        wrong: a line for each wrong reading.
        tids: threads with a record of their work, and its place in the table.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.tids: dict[int, int] = {}

    @property
    def judged(self) -> int:
        """Number of readings of threads at work."""
        return self.seen.total() - self.seen["unknown"] - self.seen["resting"]

    def places(self, table: int) -> dict[int, int]:
        """Return the address of each thread's record in a table at this address."""
        return {tid: table + 8 * (_SLOTS + slot) for tid, slot in self.tids.items()}

    def judge(self, reading: ThreadReading, table: bytes) -> None:
        """Judge one reading of a thread that was stopped."""
        words = _TABLE.unpack(table)
        tids, at, open_keys = words[:_SLOTS], words[_SLOTS : 2 * _SLOTS], words[2 * _SLOTS :]
        try:
            if reading.problems:
                raise Mismatch(f"problems {[(problem.code, problem.detail) for problem in reading.problems]}")
            record, labels = _decode_record(reading.correlation), _decode_labels(reading)
            if reading.tid not in tids:
                self.seen["unknown"] += 1
                return
            slot = self.tids[reading.tid] = tids.index(reading.tid)
            word = at[slot]
            if word == _OUTSIDE:
                self.seen["outside"] += 1
                if record or labels:
                    raise Mismatch("a span is shown where none is current")
            elif word & _MOVING:
                self.seen["resting" if word & _OUTSIDE else "moving"] += 1
                known = {key for key in (*open_keys, WorkUnit.of_key(word & (_MOVING - 1)).root.key) if key}
                if any(piece is not None and piece.root.key not in known for piece in (record, labels)):
                    raise Mismatch("a span is shown that nobody has open")
            else:
                self.seen["inside"] += 1
                self._require_exact(WorkUnit.of_key(word), record, labels, reading)
        except Mismatch as finding:
            self.wrong.append(f"{finding}: {reading.correlation} {reading.labels} of {reading.name}")

    def _require_exact(
        self, truth: WorkUnit, record: WorkUnit | None, labels: WorkUnit | None, reading: ThreadReading
    ) -> None:
        if (record, labels) != (truth, truth):
            raise Mismatch(f"{truth} is current")
        if self._requires_route and b"route" not in {label.key for label in reading.labels or ()}:
            raise Mismatch(f"the route of {truth} is missing")

    _requires_route = True


class JudgeOfIds(Judge):
    """A judge for targets whose spans have no user labels."""

    _requires_route = False


def _decode_record(record: CorrelationRecord | None) -> WorkUnit | None:
    """Return the unit of work to which all parts of a record belong."""
    if record is None or (record.valid == 1 and record.trace_present == 0):
        return None
    if record.valid != 1 or record.trace_present != 1 or record.minor_version != 1:
        raise Mismatch("not valid")
    piece = WorkUnit.of_span_id(int(record.span_id, 16))
    shown = int(record.trace_id, 16), int(record.transaction_id, 16), record.trace_flags
    if shown != (piece.trace_id, piece.root.span_id, int(piece.sampled)):
        raise Mismatch(f"a record of several spans, {piece} by its span id")
    return piece


def _decode_labels(reading: ThreadReading) -> WorkUnit | None:
    """Return the unit of work to which all parts of a label set belong."""
    labels = {label.key: label.value for label in reading.labels or ()}
    if len(labels) != len(reading.labels or ()) or labels.keys() - {*_IDS, b"route"}:
        raise Mismatch("labels that nobody has set")
    if not labels.keys() & set(_IDS):
        return None
    trace_id, span_id, local_root = (labels.get(key, b"0") for key in _IDS)
    piece = WorkUnit.of_span_id(int(span_id, 16))
    if (trace_id, local_root) != (b"%032x" % piece.trace_id, b"%016x" % piece.root.span_id):
        raise Mismatch(f"labels of several spans, {piece} by its span id")
    if labels.get(b"route", piece.route.encode()) != piece.route.encode():
        raise Mismatch(f"the route of another trace than {piece}")
    return piece
