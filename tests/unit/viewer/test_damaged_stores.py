"""Tests of stores that something happened to: what is whole is used, and the rest is said."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from sample_stores import NOON_NS, WALL, put, rows, writing
from saved_samples import TRACE, sample_line, span_line

from splunk_profiler.viewer.database import explained, make_store, open_for_writing, transaction
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, MINUTE_NS, Selection
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.store_writer import StoreWriter


def change(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


def contents(path: Path, query: str) -> list[bytes]:
    with sqlite3.connect(path) as connection:
        found = [content for (content,) in connection.execute(query)]
    connection.close()
    return found


def add_request(connection: sqlite3.Connection, path: Path, size: int) -> None:
    with explained(path), transaction(connection):
        connection.execute("INSERT INTO requests VALUES (NULL, 1, 0, ?)", (bytes(size),))


def test_a_store_that_cannot_be_opened_for_writing_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(bytes(5_000))
    with pytest.raises(SourceError, match="not a database") as caught:
        open_for_writing(path)
    assert caught.value.__context__  # holds the frames of the call
    assert str(path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


def test_a_transaction_on_a_full_disk_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_store(path)
    with closing(open_for_writing(path)) as connection:
        ((pages,),) = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(SourceError, match=r"store\.db cannot be used: database or disk is full"):
            add_request(connection, path, 50_000)
        add_request(connection, path, 10)
        assert rows(path, "requests") == 1


def test_a_transaction_whose_end_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_store(path)
    with closing(open_for_writing(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # SQLite's choice where no memory can be shared
        connection.execute("PRAGMA busy_timeout = 0")
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM requests").fetchall()
            with pytest.raises(SourceError, match=r"store\.db cannot be used: database is locked"):
                add_request(connection, path, 10)
        add_request(connection, path, 10)
        assert rows(path, "requests") == 1


@pytest.mark.parametrize("damaged", [1, 3, 5])
def test_a_request_that_cannot_be_made_a_part_goes_and_others_become_parts(tmp_path: Path, damaged: int) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, *(sample_line(time_ns=NOON_NS + place) for place in range(4)), received_ns=NOON_NS)
        put(writer, span_line("GET /"), received_ns=NOON_NS + HOUR_NS)
        change(path, "UPDATE requests SET line = ? WHERE id = ?", b"hostile", damaged)
        for now_ns, is_due in ((NOON_NS + MINUTE_NS, damaged < 5), (NOON_NS + 2 * HOUR_NS, damaged == 5)):
            said = pytest.raises(SourceError, match=r"store\.db: requests that cannot be read are dropped: 1 ")
            with said if is_due else nullcontext():
                writer.run_maintenance(now_ns)
    store = LiveStore(path)
    assert (rows(path, "requests"), rows(path, "parts"), store.unread) == (0, 1, 1)
    assert store.recording.weights(Selection("samples")).sum() == (4 if damaged == 5 else 3)


def test_requests_before_one_that_cannot_be_read_count_once_when_it_can(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        store = LiveStore(path)
        put(writer, *(sample_line(time_ns=NOON_NS + place) for place in range(4)))
        whole = contents(path, "SELECT line FROM requests WHERE id = 3")
        change(path, "UPDATE requests SET line = ? WHERE id = 3", b"hostile")
        for _ in range(2):
            with pytest.raises(SourceError, match="is damaged"):
                store.refresh()
        change(path, "UPDATE requests SET line = ? WHERE id = 3", *whole)
        store.refresh()
    assert store.recording.count() == 4


def store_with_part(path: Path) -> None:
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS))
        writer.run_maintenance(NOON_NS, hold_ns=0)


@pytest.mark.parametrize(("field", "bits"), [(8, 1), (10, 4), (10, 1)])  # flags and methods of the archive's directory
def test_a_part_with_a_wrong_bit_is_an_error_for_reader_and_writer(tmp_path: Path, field: int, bits: int) -> None:
    path = tmp_path / "store.db"
    store_with_part(path)
    part = bytearray(*contents(path, "SELECT content FROM parts"))
    part[part.index(b"PK\1\2") + field] ^= bits
    change(path, "UPDATE parts SET content = ?", bytes(part))
    with pytest.raises(SourceError, match="is damaged"):
        LiveStore(path)
    with writing(path) as writer, pytest.raises(SourceError, match="is damaged"):
        writer.run_maintenance(NOON_NS + 3 * DAY_NS)


def test_a_schema_that_is_no_text_is_an_error_for_reader_and_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store_with_part(path)
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE units", b"CREAT\xf8 TABLE units"))  # SQLite quotes it
    for use in (LiveStore, StoreWriter):
        with pytest.raises(SourceError, match=r"store\.db is damaged"):
            use(path)


def test_a_damaged_span_is_an_error_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS), span_line("GET /", times_ns=(NOON_NS, NOON_NS + 1)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        put(writer, span_line("inner", "2" * 16))
    store = LiveStore(path)
    for content in ("hostile", "7", None):
        change(path, "UPDATE spans SET content = ?", content)
        for ask in (lambda: store.spans_of(TRACE), lambda: store.count_requests(WALL)):
            with pytest.raises(SourceError, match="is damaged"):
                ask()


def test_a_value_that_is_missing_is_an_error_for_reader_and_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store_with_part(path)
    change(path, "UPDATE stacks SET frames = NULL")
    change(path, "UPDATE parts SET names = NULL")
    with pytest.raises(SourceError, match="is damaged"):
        LiveStore(path)
    with writing(path) as writer, pytest.raises(SourceError, match="is damaged"):
        writer.run_maintenance(NOON_NS + 3 * DAY_NS)


@pytest.mark.parametrize("begun", ["PRAGMA auto_vacuum = INCREMENTAL", "PRAGMA journal_mode = WAL"])
def test_a_store_whose_making_was_interrupted_is_made(tmp_path: Path, begun: str) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA auto_vacuum = INCREMENTAL; {begun}")
    connection.close()
    assert path.stat().st_size
    with pytest.raises(
        SourceError, match=r"store\.db is empty: .*; fill it: splunk-profiler collect --store .*store\.db"
    ):
        LiveStore(path)
    store_with_part(path)
    assert LiveStore(path).recording.count() == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchall() == [(2,)]  # the file becomes smaller
    connection.close()


def test_a_store_has_one_writer_by_whatever_name(tmp_path: Path) -> None:
    path, link = tmp_path / "store.db", tmp_path / "link.db"
    link.symlink_to(path.name)
    for first, second in ((path, link), (link, path)):
        with writing(first), pytest.raises(SourceError, match=r"store\.db is being written by another process"):
            StoreWriter(second)
    with writing(link) as writer:
        put(writer, sample_line())
    assert LiveStore(path).recording.count() == 1


def test_what_lies_more_than_a_day_ahead_is_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ahead_ns = NOON_NS + DAY_NS, NOON_NS + DAY_NS + HOUR_NS
    with writing(path) as writer:
        for place, time_ns in enumerate((NOON_NS, *ahead_ns), 1):
            span = span_line("GET /", str(place) * 16, times_ns=(NOON_NS, time_ns))
            put(writer, sample_line(time_ns=time_ns), span)
        writer.run_maintenance(NOON_NS + MINUTE_NS)
        store = LiveStore(path)
        assert (store.recording.count(), rows(path, "spans"), store.unread) == (2, 2, 2)
        writer.run_maintenance(NOON_NS + 9 * DAY_NS)
        store.refresh()
        assert (store.recording.count(), rows(path, "spans"), store.unread) == (0, 0, 2)


def test_what_lies_ahead_in_files_is_left_out_of_their_store(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text("".join(sample_line(time_ns=NOON_NS + day * DAY_NS) for day in range(4)))
    files = LiveFiles(tmp_path)
    files.refresh()
    with writing(tmp_path / "store.db") as writer:
        assert writer.add(files.recording, 1, until_ns=NOON_NS + DAY_NS + 1) == 3
    store = LiveStore(tmp_path / "store.db")
    assert (store.recording.count(), store.unread) == (2, 3)


def test_a_store_that_is_made_anew_while_it_is_shown_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS), span_line("GET /", times_ns=(NOON_NS, NOON_NS + 1)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
    store = LiveStore(path)
    assert (store.recording.count(), store.count_requests(WALL)) == (1, 1)
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    for _ in range(2):
        with pytest.raises(SourceError, match=r"store\.db does not exist"):
            store.refresh()
    version = store.version
    with writing(path) as writer:
        put(writer, *(sample_line("new.function(/n.py:1)", time_ns=NOON_NS + place) for place in range(5)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        store.refresh()
        assert [function.name for function in store.recording.functions] == ["new.function"]
        put(writer, sample_line("new.function(/n.py:1)"))
        store.refresh()
    assert (store.recording.weights(Selection("samples")).sum(), store.count_requests(WALL)) == (6, 0)
    assert store.version > version


def test_a_store_that_another_takes_the_place_of_is_not_shown_any_more(tmp_path: Path) -> None:
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    for each, count in ((path, 1), (other, 2)):
        with writing(each) as writer:
            put(writer, *(sample_line(time_ns=NOON_NS + place) for place in range(count)))
    store = LiveStore(path)
    other.replace(path)
    store.refresh()
    assert store.recording.count() == 2
