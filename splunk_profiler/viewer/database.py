"""The file of stored samples: a database of SQLite, written by one process and read by many. See ``docs/storage.md``.

Samples are in parts of an hour, or of a day once they are summed by minute; what they refer to is in tables, once. Text
is in JSON, since names may have lone surrogates. Requests wait in a table of their own until they are made into parts.
`stored_spans` has what is done with spans.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from splunk_profiler.system.private_files import make_private, open_private
from splunk_profiler.viewer import stored_spans
from splunk_profiler.viewer.model import Facets
from splunk_profiler.viewer.otlp_files import SourceError

FORMAT = 4
_APPLICATION = 0x53505053
_BUSY_S = 30.0
# What reading content raises that is not what was written.
UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError, zlib.error)

_SCHEMA = f"""
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE requests (id INTEGER PRIMARY KEY AUTOINCREMENT, received_ns INTEGER, is_traces INTEGER, line BLOB);
CREATE TABLE functions (id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT UNIQUE);
CREATE TABLE stacks (id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB UNIQUE, frames BLOB);
CREATE TABLE facets (id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT UNIQUE);
CREATE TABLE units (name TEXT PRIMARY KEY, unit TEXT);
CREATE TABLE spans (trace TEXT, id TEXT, end_ns INTEGER, content TEXT, PRIMARY KEY (trace, id)) WITHOUT ROWID;
CREATE TABLE parts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    since_ns INTEGER, until_ns INTEGER, is_summed INTEGER, names TEXT, rows INTEGER, content BLOB
);
CREATE TABLE unread (count INTEGER);
CREATE INDEX parts_by_time ON parts (until_ns);
CREATE INDEX spans_by_time ON spans (end_ns);
{stored_spans.SCHEMA}
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
COMMIT;
"""


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a store.

    Raises:
        SourceError: it is not one, has a newer format, or cannot be read.
    """
    with explained(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_still(path) else ''}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def is_still(path: Path) -> bool:
    """Return True for a store that no process writes, in a directory where files cannot be made.

    Readers of one that is being written share memory in a file beside it; of a still one they need none, and do not
    see what is written later.
    """
    return not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()


def make_store(path: Path) -> None:
    """Make a store if it is not there, and bring an older one up to date; only its owner can read it then.

    This process must not have it open: SQLite's locks are the process's, and go when any of its descriptors is closed.

    Raises:
        SourceError: it is something else, of a newer format, or cannot be written.
    """
    try:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            with explained(path), closing(_connect(path)) as connection:
                _make(connection, path)
            make_private(descriptor)  # now that it is ours; before it is written, as its log gets the same permissions
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror}") from None


def _make(connection: sqlite3.Connection, path: Path) -> None:
    if _is_empty(connection):
        connection.executescript(_SCHEMA)
    if _check(connection, path) < FORMAT:
        with transaction(connection):
            stored_spans.upgrade(connection)
            connection.execute(f"PRAGMA user_version = {FORMAT}")


def open_for_writing(path: Path, *, sync: bool = False) -> sqlite3.Connection:
    """Open a store that `make_store` has made.

    Args:
        path: of the file.
        sync: transactions are on the disk when they have ended; else they survive the end of the process.

    Raises:
        SourceError: it cannot be written.
    """
    with explained(path):
        connection = _connect(path)
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        except BaseException:
            connection.close()
            raise
        return connection


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise what SQLite says as a `SourceError` that names the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise SourceError(f"{path} cannot be used: {error}") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter of its text, which quotes what is there
        raise damaged(path, error) from None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise what SQLite says, and what reading damaged content raises, as a `SourceError` that names the file."""
    with explained(path):
        try:
            yield
        except UNREADABLE as error:
            raise damaged(path, error) from None


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do all of the block, or nothing if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself ends it after some errors, as of a full disk
            connection.execute("ROLLBACK")
        raise


def read_facets(content: str) -> Facets:
    """Return facets from their JSON."""
    facets = Facets(*json.loads(content))
    return facets._replace(labels=tuple((name, value) for name, value in facets.labels))


def read_units(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the unit of each value."""
    stored = connection.execute("SELECT name, unit FROM units")
    return {json.loads(name): json.loads(unit) for name, unit in stored}


def damaged(path: Path, error: Exception) -> SourceError:
    """Return the error for a store whose content is not what was written."""
    return SourceError(f"{path} is damaged ({error}); what is whole in it: sqlite3 {path} .recover")


def _check(connection: sqlite3.Connection, path: Path) -> int:
    """Return the format; raise `SourceError` if it is not known."""
    ((application,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if _is_empty(connection):
        raise SourceError(
            f"{path} is empty: its making was interrupted; fill it: splunk-profiler collect --store {path}"
        )
    if application != _APPLICATION:
        raise SourceError(f"{path} is a database of something else; name another file")
    if version > FORMAT:
        raise SourceError(f"{path} has format {version}, this version reads {FORMAT}: install a newer splunk-profiler")
    return int(version)


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Return True for a database that is new, or whose making was interrupted."""
    return not connection.execute("SELECT 1 FROM sqlite_master").fetchall()
