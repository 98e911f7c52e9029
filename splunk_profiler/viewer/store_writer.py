"""Writes a store of samples, and keeps it small: requests become parts, old parts sums by minute, and then they go.

Whatever has been appended survives the end of the process: each step is a transaction.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from splunk_profiler.system.private_files import open_private
from splunk_profiler.viewer.columns import Columns
from splunk_profiler.viewer.database import (
    UNREADABLE,
    explained,
    make_store,
    open_for_writing,
    read_facets,
    read_units,
    readable,
    transaction,
)
from splunk_profiler.viewer.model import (
    DAY_NS,
    HOUR_NS,
    MINUTE_NS,
    NEVER_NS,
    UNKNOWN_SPAN,
    Facets,
    Span,
    SpanKey,
    name_value,
)
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.parts import by_minute, joined, pack, rows_of, unpack
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import RecordReader
from splunk_profiler.viewer.retention import delete_beyond, delete_old, used_bytes
from splunk_profiler.viewer.stacks import Numbers
from splunk_profiler.viewer.stored_spans import add_spans, add_stored_spans, read_endpoint, read_some_spans

_HOLD_NS = MINUTE_NS  # requests wait for so long, for the spans of their samples
_MAX_WAITING_BYTES = 32 << 20
_MAX_BATCH_BYTES = 64 << 20
_MAX_PARTS = 30  # of an hour, before they are joined
AHEAD_NS = DAY_NS  # clocks differ
_LATE_NS = 10 * MINUTE_NS  # after its end an hour is taken for complete
_Part = tuple[int, int, bool, str, int, bytes]


class Limits(NamedTuple):
    """Limits of a store: how long samples are kept as they are, and all, and how many bytes of it."""

    samples_ns: int = DAY_NS
    all_ns: int = 7 * DAY_NS
    max_bytes: int = 1 << 30


class StoreWriter:
    """A store that this process alone writes; `append` and `run_maintenance` may be called on different threads.

    Raises:
        SourceError: it is not one, cannot be written, or another process writes it.
    """

    def __init__(self, path: Path, limits: Limits = Limits(), *, sync: bool = False) -> None:  # noqa: B008  # immutable
        self.path = path
        self._limits = limits
        self._lock = threading.Lock()
        self._named_hours: set[int] = set()  # that are over, and whose samples have the names of all spans so far
        self._lock_descriptor = _lock_file(Path(f"{os.path.realpath(path)}.lock"))
        try:
            make_store(path)
            self._appending, self._keeping = (open_for_writing(path, sync=sync) for _ in range(2))
        except BaseException:
            os.close(self._lock_descriptor)
            raise

    @property
    def size(self) -> int:
        """Bytes in use."""
        with self._lock, explained(self.path):
            return used_bytes(self._appending)

    def append(self, request: Any, *, is_traces: bool, received_ns: int) -> None:
        """Add a request in OTLP/JSON.

        Raises:
            SourceError: it could not be written; the store is as before.
        """
        line = zlib.compress(json.dumps(request, separators=(",", ":")).encode(), 1)
        with self._lock, explained(self.path):
            self._appending.execute(
                "INSERT INTO requests (received_ns, is_traces, line) VALUES (?, ?, ?)", (received_ns, is_traces, line)
            )

    def add(self, recording: Recording, unread: int = 0, *, until_ns: int = NEVER_NS) -> int:
        """Add the samples and spans of a recording.

        Args:
            recording: of which `unread` records could not be read.
            unread: is counted in the store as well.
            until_ns: those of later are left out.

        Returns:
            How many were not read or left out.

        Raises:
            SourceError: they could not be written; the store is as before.
        """
        with explained(self.path), transaction(self._keeping):
            return self._add(recording, unread, until_ns)

    def run_maintenance(self, now_ns: int, *, hold_ns: int = _HOLD_NS) -> None:
        """Make parts of the requests that have waited for `hold_ns`, join and sum up parts, and delete old ones.

        What is more than `AHEAD_NS` from now is counted and left out: it would never be old.

        Raises:
            SourceError: the store cannot be read or written; it is as before the step that failed. Or all was done, but
                there were requests that could not be read, which are dropped.
        """
        dropped: list[Exception] = []
        with readable(self.path):
            while self._store_requests(now_ns, hold_ns, dropped):
                pass
            self._join(now_ns)
            self._sum_by_minute(now_ns)
            # Before that are sums, which have no spans.
            oldest_ns, summed_ns = now_ns - self._limits.all_ns, now_ns - self._limits.samples_ns - DAY_NS
            delete_old(self._keeping, oldest_ns, summed_ns)
            delete_beyond(self._keeping, self._limits.max_bytes)
        if dropped:
            raise SourceError(f"{self.path}: requests that cannot be read are dropped: {len(dropped)} ({dropped[0]})")

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._keeping.close()
            self._appending.close()
            os.close(self._lock_descriptor)

    def _store_requests(self, now_ns: int, hold_ns: int, dropped: list[Exception]) -> bool:
        """Make parts of a batch of requests; return True if there may be more that are due.

        Why requests were dropped is added to `dropped`.
        """
        waiting = self._keeping.execute(
            "SELECT id, received_ns, is_traces, length(line) FROM requests ORDER BY id"
        ).fetchall()
        is_full = sum(length for *_, length in waiting) > _MAX_WAITING_BYTES
        due = [
            (row_id, length) for row_id, received_ns, _, length in waiting if is_full or received_ns <= now_ns - hold_ns
        ]
        if not due:
            return False
        sizes = np.cumsum([length for _, length in due])
        batch = [row_id for row_id, _ in due[: 1 + int(np.searchsorted(sizes, _MAX_BATCH_BYTES))]]
        later = RecordReader(Recording())
        for row_id in {row_id for row_id, _, is_traces, _ in waiting if is_traces}.difference(batch):
            with suppress(*UNREADABLE):  # it is dropped when it is due
                later.add_request(self._line(row_id))
        dropped += self._store(batch, later.spans, now_ns + AHEAD_NS)
        return len(batch) < len(due)

    def _store(self, batch: Sequence[int], later: Mapping[SpanKey, Span], until_ns: int) -> list[Exception]:
        """Make parts of requests; those that cannot be are counted and dropped, and it returns why."""
        reader = RecordReader(Recording())
        reader.recording.units.update(read_units(self._keeping))
        try:
            for row_id in batch:
                reader.add_request(self._line(row_id))
            reader.add_spans(later)
            add_stored_spans(self._keeping, reader)
            self._make_parts(batch, reader.recording, reader.unread, until_ns)
        except UNREADABLE as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                halves = batch[:middle], batch[middle:]
                return [each for half in halves for each in self._store(half, later, until_ns)]
            self._make_parts(batch, Recording(), 1, until_ns)
            return [error]
        return []

    def _make_parts(self, batch: Sequence[int], recording: Recording, unread: int, until_ns: int) -> None:
        with transaction(self._keeping):
            self._add(recording, unread, until_ns)
            self._keeping.executemany("DELETE FROM requests WHERE id = ?", [(row_id,) for row_id in batch])
        spans = (span for of_trace in recording.spans.values() for span in of_trace.values())
        periods = {(span.start_ns // HOUR_NS, span.end_ns // HOUR_NS) for span in spans}
        self._named_hours -= {
            hour for hour in self._named_hours if any(first <= hour <= last for first, last in periods)
        }

    def _line(self, row_id: int) -> bytes:
        ((line,),) = self._keeping.execute("SELECT line FROM requests WHERE id = ?", (row_id,))
        return zlib.decompress(line)

    def _add(self, recording: Recording, unread: int, until_ns: int) -> int:
        functions = [self._row_id("functions", list(function)) for function in recording.functions]
        stacks = self._stack_row_ids(recording, np.array(functions, np.int32))
        facets = np.array([self._row_id("facets", list(each)) for each in recording.facets], np.int32)
        units = read_units(self._keeping)
        names = {name: name_value(units, name, unit) for name, unit in recording.units.items()}
        for columns in recording.columns():
            count = columns.rows_between(None, until_ns).stop
            unread += len(columns) - count
            edges = np.flatnonzero(np.diff(columns.time_ns[:count] // HOUR_NS)) + 1
            for first, last in pairwise([0, *edges.tolist(), count]):
                some = rows_of(columns, slice(first, last))
                weights = {names[name]: each for name, each in some.weights.items()}
                if len(some):
                    placed = replace(some, stack=stacks[some.stack], facets=facets[some.facets], weights=weights)
                    self._insert([_part(placed)])
        self._keeping.executemany(
            "INSERT OR REPLACE INTO units VALUES (?, ?)",
            [(_json(names[name]), _json(unit)) for name, unit in recording.units.items() if name in recording.values],
        )
        unread += add_spans(self._keeping, recording.spans, until_ns)
        if unread:
            self._keeping.execute("INSERT INTO unread VALUES (?)", (unread,))
        return unread

    def _stack_row_ids(self, recording: Recording, functions: Numbers) -> Numbers:
        row_ids = []
        for stack in range(len(recording.stacks)):
            frames = np.frombuffer(recording.stacks.packed(stack), np.int32).reshape(-1, 2).copy()
            frames[:, 0] = functions[frames[:, 0]]
            content = frames.tobytes()
            digest = hashlib.blake2b(content, digest_size=16).digest()
            row_ids.append(self._find_or_insert("stacks", "digest", digest, {"frames": content}))
        return np.array(row_ids, np.int32)

    def _row_id(self, table: str, content: list[Any]) -> int:
        return self._find_or_insert(table, "content", _json(content), {})

    def _find_or_insert(self, table: str, column: str, key: str | bytes, more: dict[str, bytes]) -> int:
        found = self._keeping.execute(f"SELECT id FROM {table} WHERE {column} = ?", (key,)).fetchone()
        if found is None:
            names, marks = ", ".join([column, *more]), ", ".join("?" * (1 + len(more)))
            added = self._keeping.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", (key, *more.values()))
            return int(added.lastrowid or 0)
        return int(found[0])

    def _insert(self, parts: Iterable[_Part]) -> None:
        self._keeping.executemany(
            "INSERT INTO parts (since_ns, until_ns, is_summed, names, rows, content) VALUES (?, ?, ?, ?, ?, ?)", parts
        )

    def _join(self, now_ns: int) -> None:
        """Make one part of those of an hour that is over, or if there are many of them.

        Samples then get the names of spans that ended after they had become parts; those of an hour that is over, also
        when more spans of it have come.
        """
        groups = self._groups("NOT is_summed", HOUR_NS)
        over = {hour for hour, _ in groups if (hour + 1) * HOUR_NS + _LATE_NS < now_ns}
        for hour, row_ids in groups:
            is_unnamed = hour in over and hour not in self._named_hours
            if is_unnamed or len(row_ids) > (1 if hour in over else _MAX_PARTS):
                columns = self._read(row_ids)
                named = self._named(columns)
                if len(row_ids) > 1 or (named.facets != columns.facets).any():
                    self._exchange(row_ids, [named])
        self._named_hours = over

    def _sum_by_minute(self, now_ns: int) -> None:
        """Make sums by minute of the samples of a day when all of them are old enough."""
        for period, row_ids in self._groups("1", DAY_NS):
            if (period + 1) * DAY_NS > now_ns - self._limits.samples_ns:
                continue
            marks = ",".join("?" * len(row_ids))
            ((unsummed,),) = self._keeping.execute(
                f"SELECT count(*) FROM parts WHERE id IN ({marks}) AND NOT is_summed", row_ids
            )
            if unsummed:
                columns = self._named(self._read(row_ids))
                self._exchange(row_ids, by_minute(columns, self._processes(columns)), is_summed=True)

    def _exchange(self, row_ids: Sequence[int], columns: Sequence[Columns], *, is_summed: bool = False) -> None:
        """Put others in the place of parts. Requests wait for the transaction alone, not for what takes long."""
        parts = [_part(each, is_summed=is_summed) for each in columns]
        with transaction(self._keeping):
            self._keeping.executemany("DELETE FROM parts WHERE id = ?", [(row_id,) for row_id in row_ids])
            self._insert(parts)

    def _groups(self, condition: str, period_ns: int) -> list[tuple[int, list[int]]]:
        """Return the parts that have the same values and begin in the same period."""
        groups: dict[tuple[int, str], list[int]] = {}
        rows = self._keeping.execute(f"SELECT since_ns / {period_ns}, names, id FROM parts WHERE {condition}")
        for period, names, row_id in rows:
            groups.setdefault((period, names), []).append(row_id)
        return [(period, row_ids) for (period, _), row_ids in groups.items()]

    def _read(self, row_ids: Sequence[int]) -> Columns:
        """Return the samples of parts."""
        parts = []
        for row_id in row_ids:
            ((names, content),) = self._keeping.execute("SELECT names, content FROM parts WHERE id = ?", (row_id,))
            parts.append(unpack(content, json.loads(names)))
        return joined(parts)

    def _named(self, columns: Columns) -> Columns:
        """Return samples with the names of spans that ended after these had become parts."""
        known = self._known_facets(columns)
        unnamed = [row_id for row_id, facets in known.items() if facets.span == UNKNOWN_SPAN]
        rows = np.flatnonzero(np.isin(columns.facets, unnamed))
        count = len(columns.spans.ids)
        numbered = columns.facets[rows].astype(np.int64) * count + columns.span[rows]
        pairs, which = np.unique(numbered, return_inverse=True)
        given = [(known[pair // count], columns.spans.key(pair % count)) for pair in pairs.tolist()]
        spans = read_some_spans(self._keeping, {key for _, key in given})
        names = {key: (span.name, read_endpoint(self._keeping, key[0], span)) for key, span in spans.items()}
        named = [facets.named(*names[key]) if key in names else facets for facets, key in given]
        with transaction(self._keeping):
            row_ids = {each: self._row_id("facets", list(each)) for each in set(named)}
        facets = columns.facets.astype(np.int32)
        facets[rows] = np.array([row_ids[each] for each in named], np.int32)[which]
        return replace(columns, facets=facets)

    def _processes(self, columns: Columns) -> Numbers:
        """Return a number for the process of each sample."""
        known = self._known_facets(columns)
        numbers: dict[str, int] = {}
        of_facets = np.zeros(max(known, default=0) + 1, np.int64)
        for row_id, facets in known.items():
            of_facets[row_id] = numbers.setdefault(facets.process, len(numbers))
        return of_facets[columns.facets]

    def _known_facets(self, columns: Columns) -> dict[int, Facets]:
        found = {}
        for row_id in np.unique(columns.facets).tolist():
            ((content,),) = self._keeping.execute("SELECT content FROM facets WHERE id = ?", (row_id,))
            found[row_id] = read_facets(content)
        return found


def _lock_file(path: Path) -> int:
    """Return the descriptor of a file that this process alone holds."""
    try:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SourceError(f"{path.with_suffix('')} is being written by another process; name another file") from None
    return descriptor


def _part(columns: Columns, *, is_summed: bool = False) -> _Part:
    """Return the row of a part."""
    since_ns, until_ns = int(columns.time_ns[0]), int(columns.time_ns[-1]) + 1
    return since_ns, until_ns, is_summed, _json(list(columns.weights)), len(columns), pack(columns)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
