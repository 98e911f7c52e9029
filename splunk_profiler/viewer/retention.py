"""The deletion of the oldest samples and spans of a store, and of all that only they refer to."""

from __future__ import annotations

import json
import sqlite3

import numpy as np

from splunk_profiler.viewer.database import transaction
from splunk_profiler.viewer.model import NEVER_NS
from splunk_profiler.viewer.parts import unpack
from splunk_profiler.viewer.stored_spans import delete_spans, measure_spans

_SPANS_AT_ONCE = 20_000  # are deleted: requests wait meanwhile


def delete_old(connection: sqlite3.Connection, oldest_ns: int, summed_ns: int) -> None:
    """Delete samples that ended before `oldest_ns`, and spans.

    Those that ended before `summed_ns`, or before `oldest_ns` and all samples that are left: of these, requests can
    still be counted.
    """
    deleted = connection.execute("DELETE FROM parts WHERE until_ns < ?", (oldest_ns,))
    ((since_ns,),) = connection.execute("SELECT coalesce(min(since_ns), ?) FROM parts", (oldest_ns,))
    _delete_spans(connection, max(summed_ns, min(since_ns, oldest_ns)))
    if deleted.rowcount:
        _clean(connection)


def delete_beyond(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Delete the oldest until there are a tenth fewer bytes than allowed, if there are too many.

    Requests that wait are not counted: they have a limit of their own, which may be more than what is allowed here.
    Spans go alone while they take most of the room; else samples go, and the spans before those that are left. What
    samples refer to may be most of the bytes, and to clean that up reads all other parts: it is a tenth at a time.
    """
    ((waiting,),) = connection.execute("SELECT coalesce(sum(length(line)), 0) FROM requests")
    wanted = max_bytes
    while (used := used_bytes(connection) - waiting) > wanted:
        wanted = max_bytes * 9 // 10
        oldest = connection.execute("SELECT id FROM parts ORDER BY until_ns").fetchall()
        spans, span_bytes = measure_spans(connection)
        if oldest and 2 * span_bytes <= used:
            with transaction(connection):
                connection.executemany("DELETE FROM parts WHERE id = ?", oldest[: -(-len(oldest) // 10)])
            ((since_ns,),) = connection.execute("SELECT min(since_ns) FROM parts")
            _delete_spans(connection, since_ns or 0)
            _clean(connection)
        elif spans:
            _delete_spans(connection, NEVER_NS, -(-spans // 10))
            _give_back(connection)
        else:
            return


def _delete_spans(connection: sqlite3.Connection, before_ns: int, most: int = NEVER_NS) -> None:
    """Delete the oldest spans, at most so many that ended before that time."""
    for first in range(0, most, _SPANS_AT_ONCE):
        with transaction(connection):
            if not delete_spans(connection, before_ns, min(_SPANS_AT_ONCE, most - first)):
                return


def _clean(connection: sqlite3.Connection) -> None:
    """Delete what no part refers to any more."""
    used: dict[str, set[int]] = {"stacks": set(), "facets": set()}
    for names, content in connection.execute("SELECT names, content FROM parts"):
        columns = unpack(content, json.loads(names))
        used["stacks"].update(np.unique(columns.stack).tolist())
        used["facets"].update(np.unique(columns.facets).tolist())
    functions: set[int] = set()
    for row_id, frames in connection.execute("SELECT id, frames FROM stacks"):
        if row_id in used["stacks"]:
            functions.update(np.frombuffer(frames, np.int32)[::2].tolist())
    with transaction(connection):
        for table, row_ids in (*used.items(), ("functions", functions)):
            known = [row_id for (row_id,) in connection.execute(f"SELECT id FROM {table}")]
            unused = [(row_id,) for row_id in known if row_id not in row_ids]
            connection.executemany(f"DELETE FROM {table} WHERE id = ?", unused)
    _give_back(connection)


def _give_back(connection: sqlite3.Connection) -> None:
    """Make the file as small as what is in it."""
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` takes but one step, which is a page
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    ((pages,), (free,), (size,)) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
