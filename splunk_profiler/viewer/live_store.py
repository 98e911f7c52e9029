"""A store of samples read into a `Recording`: each call reads the parts and requests that are new."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from splunk_profiler.viewer.columns import Columns, is_span_key
from splunk_profiler.viewer.database import explained, is_still, open_for_reading, read_facets, read_units, readable
from splunk_profiler.viewer.model import Selection, Span
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.parts import unpack
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import RecordReader
from splunk_profiler.viewer.source import Source, check_request_filters
from splunk_profiler.viewer.stacks import Numbers
from splunk_profiler.viewer.stored_spans import add_stored_spans, check_deleted, count_stored_requests, read_spans


class LiveStore(Source):
    """The content of a store, which another process may be writing.

    Raises:
        SourceError: it is not one, has a newer format, is damaged, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._start()
        self.refresh()

    def _start(self) -> None:
        file = _identity(self.path)  # before it is opened: another may take its place then
        self._connection = open_for_reading(self.path)
        self._file = file
        self.recording = Recording()
        self._reader = RecordReader(self.recording)
        self._requests: list[int] = []  # that have been read and are not in a part yet
        self._parts: dict[int, Columns] = {}
        self._seen: int | None = None  # the state of the file, as SQLite counts them
        # By the store's number, which is never given again, the index in the recording.
        self._functions, self._stacks, self._facets = (np.zeros(1, np.int32) for _ in range(3))

    def refresh(self) -> None:
        """Read what has been added since, and forget what has been deleted; all anew if the file was made anew.

        Raises:
            SourceError: it cannot be read.
        """
        if _identity(self.path) != self._file:
            before = self._connection
            self._start()
            before.close()
        with readable(self.path):
            self._connection.execute("BEGIN")  # one state of all tables
            try:
                self._connection.execute("SELECT 1 FROM parts LIMIT 1").fetchall()
                ((seen,),) = self._connection.execute("PRAGMA data_version")
                if seen != self._seen:
                    self._read()
                    self._seen = seen
                    self.version += 1
            finally:
                self._connection.execute("COMMIT")
        self.recording.stacks.prepare()

    def spans_of(self, trace: str) -> list[Span]:
        """Return the spans of a trace."""
        if not is_span_key((trace, "")):
            return []
        with readable(self.path):
            stored = read_spans(self._connection, trace)
        return list({**stored, **self.recording.spans.get(trace, {})}.values())

    def count_requests(self, selection: Selection) -> int:
        """Count the first spans of services in traces, among those that are stored and those that wait to be.

        Raises:
            SourceError: the store cannot be read.
            ValueError: the selection has filters that spans have no values for, or samples whose spans are deleted.
        """
        check_request_filters(selection)
        with explained(self.path):
            first_ns, _ = self.recording.period_ns()
            check_deleted(self._connection, max(selection.since_ns or 0, first_ns))
        with readable(self.path):
            return count_stored_requests(self._connection, selection, self.recording.spans)

    def _read(self) -> None:
        add = self.recording
        self._functions = self._extended(
            "functions", "content", self._functions, lambda text: add.function_id(*json.loads(text))
        )
        self._stacks = self._extended("stacks", "frames", self._stacks, self._add_stack)
        self._facets = self._extended("facets", "content", self._facets, lambda text: add.facets_id(read_facets(text)))
        add.units.update(read_units(self._connection))
        self._read_parts()
        self._read_requests()
        ((unread,),) = self._connection.execute("SELECT coalesce(sum(count), 0) FROM unread")
        self.unread = unread + self._reader.unread

    def _extended(self, table: str, column: str, indexes: Numbers, add: Callable[[Any], int]) -> Numbers:
        """Add what is new in a table to the recording, and return the indexes of all."""
        query = f"SELECT id, {column} FROM {table} WHERE id >= ? ORDER BY id"
        found = self._connection.execute(query, (len(indexes),)).fetchall()
        if not found:
            return indexes
        result = np.zeros(found[-1][0] + 1, np.int32)
        result[: len(indexes)] = indexes
        for row_id, content in found:
            result[row_id] = add(content)
        return result

    def _add_stack(self, packed: bytes) -> int:
        frames = np.frombuffer(packed, np.int32).reshape(-1, 2).copy()
        frames[:, 0] = self._functions[frames[:, 0]]
        return self.recording.stacks.index(frames.tobytes())

    def _read_parts(self) -> None:
        found = [row_id for (row_id,) in self._connection.execute("SELECT id FROM parts")]
        self._parts = {row_id: self._parts.get(row_id) or self._read_part(row_id) for row_id in found}
        self.recording.loaded = list(self._parts.values())

    def _read_part(self, row_id: int) -> Columns:
        ((names, content),) = self._connection.execute("SELECT names, content FROM parts WHERE id = ?", (row_id,))
        columns = unpack(content, json.loads(names))
        self.recording.values.update(name for name, weights in columns.weights.items() if weights.any())
        return replace(columns, stack=self._stacks[columns.stack], facets=self._facets[columns.facets])

    def _read_requests(self) -> None:
        found = [row_id for (row_id,) in self._connection.execute("SELECT id FROM requests ORDER BY id")]
        if found[: len(self._requests)] != self._requests:  # some have become parts
            self.recording.clear_added()
            self.recording.spans.clear()  # the store has those of parts
            self._reader = RecordReader(self.recording)
            self._requests = []
        for row_id in found[len(self._requests) :]:
            ((line,),) = self._connection.execute("SELECT line FROM requests WHERE id = ?", (row_id,))
            self._reader.add_request(zlib.decompress(line))
            self._requests.append(row_id)  # at once: one after it may be an error
        add_stored_spans(self._connection, self._reader)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file from another of its name, while either is open; None if it cannot be looked at.

    One that is still is another when it is written.

    Raises:
        SourceError: the file does not exist.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist") from None
    except OSError:
        return None
    return status.st_dev, status.st_ino, *((status.st_size, status.st_mtime_ns) if is_still(path) else ())
