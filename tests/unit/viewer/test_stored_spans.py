"""Tests of the requests that are counted in a store."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest
from sample_stores import NOON_NS, WALL, of_version, put, rows, writing
from saved_samples import TRACE, sample_line, span_line

from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, MINUTE_NS, Selection
from splunk_profiler.viewer.store_writer import Limits


def test_requests_are_counted_before_and_after_they_became_parts(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, span_line("GET /", "1" * 16, times_ns=(NOON_NS, NOON_NS + 9), service="shop"))
        put(writer, span_line("query", "2" * 16, "1" * 16, (NOON_NS, NOON_NS + 5), service="shop"))
        put(writer, span_line("POST /pay", "3" * 16, "2" * 16, (NOON_NS, NOON_NS + 4), service="billing"))
        store = LiveStore(path)
        for _ in range(2):
            assert store.count_requests(WALL) == 2
            assert store.count_requests(Selection("wall", filters={"service": frozenset({"shop"})})) == 1
            assert store.count_requests(Selection("wall", filters={"endpoint": frozenset({"query"})})) == 0
            assert store.count_requests(Selection("wall", NOON_NS + 1)) == 0
            writer.run_maintenance(NOON_NS, hold_ns=0)
            store.refresh()


def test_a_parent_that_comes_later_tells_that_its_child_was_no_request(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        store = LiveStore(path)
        counts = []
        for name, span, parent in (("query", "2", "1"), ("GET /", "1", ""), ("POST /", "3", "")):
            put(writer, span_line(name, span * 16, parent * 16, (NOON_NS, NOON_NS + 9), service="shop"))
            writer.run_maintenance(NOON_NS, hold_ns=0)
            store.refresh()
            counts.append((store.count_requests(WALL), rows(path, "first_spans")))
        assert counts == [(1, 1), (1, 1), (2, 2)]
        chosen = {"service": {"shop", "other"}, "endpoint": {"GET /", "query"}, "trace": {TRACE, "\udcff"}}
        filters = {name: frozenset(values) for name, values in chosen.items()}
        assert store.count_requests(Selection("wall", NOON_NS, NOON_NS + 1, filters)) == 1
        assert store.count_requests(Selection("wall", None, NOON_NS)) == 0
        with pytest.raises(ValueError, match="by service, version, endpoint and trace: remove the filter by thread"):
            store.count_requests(Selection("wall", filters={"thread": frozenset({"main"})}))
        writer.run_maintenance(NOON_NS + 3 * DAY_NS, hold_ns=0)
        assert rows(path, "first_spans") == rows(path, "spans") == 0


def test_a_span_names_the_samples_of_an_hour_that_is_over(tmp_path: Path) -> None:
    path, begin_ns = tmp_path / "store.db", NOON_NS
    with writing(path) as writer:
        for number, minutes in (("1", 5), ("2", 80), ("3", 200)):  # how long spans are: the first ends in its hour
            put(writer, sample_line(time_ns=begin_ns, span=number * 16))
            writer.run_maintenance(begin_ns, hold_ns=0)
            end_ns = begin_ns + minutes * MINUTE_NS
            writer.run_maintenance(end_ns - MINUTE_NS)
            times_ns = begin_ns, end_ns
            put(writer, span_line(f"{minutes} minutes", number * 16, times_ns=times_ns), received_ns=end_ns)
            writer.run_maintenance(end_ns, hold_ns=0)
            begin_ns += 6 * HOUR_NS
            writer.run_maintenance(begin_ns)
        store = LiveStore(path)
        names = {name for name, _ in store.recording.facet_values(WALL)["endpoint"].values}
        assert names == {"5 minutes", "80 minutes", "200 minutes"}
    version = store.version
    with writing(path) as writer:
        writer.run_maintenance(begin_ns + HOUR_NS)
    store.refresh()
    assert store.version == version


def test_endpoints_of_texts_are_found_among_all_spans_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def endpoints() -> dict[str, int]:
        return dict(LiveStore(path).recording.facet_values(Selection("samples"))["endpoint"].values)

    with writing(path) as writer:
        put(writer, span_line("GET /", "1" * 16, times_ns=(NOON_NS, NOON_NS + 1), service="shop"))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        put(writer, span_line("query", "2" * 16, "1" * 16, times_ns=(NOON_NS, NOON_NS + 1), service="shop"))
        put(writer, sample_line(time_ns=NOON_NS), sample_line(time_ns=NOON_NS, span="3" * 16))
        last = span_line("scan", "3" * 16, "2" * 16, times_ns=(NOON_NS, NOON_NS + 1), service="shop")
        put(writer, span_line("read", parent="2" * 16, times_ns=(NOON_NS, NOON_NS + 1), service="shop"))
        found = {"GET /": 1, "(span not received)": 1}
        assert endpoints() == found
        writer.run_maintenance(NOON_NS, hold_ns=0)
        assert endpoints() == found
        put(writer, last)
        writer.run_maintenance(NOON_NS + 2 * HOUR_NS)
    assert endpoints() == {"GET /": 2}


def test_spans_are_kept_no_longer_than_samples(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path, Limits(all_ns=DAY_NS)) as writer:
        put(writer, sample_line(time_ns=NOON_NS), span_line("GET /", times_ns=(NOON_NS, NOON_NS)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        writer.run_maintenance(NOON_NS + DAY_NS + 2)
    assert rows(path, "parts") == rows(path, "spans") == 0


def test_spans_are_kept_as_long_as_samples_of_their_hour(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path, Limits(all_ns=DAY_NS)) as writer:
        for minute in range(0, 60, 15):
            at_ns = NOON_NS + minute * MINUTE_NS
            put(writer, span_line("GET /", f"{minute:016x}", times_ns=(at_ns, at_ns + 9)))
            if minute:
                put(writer, sample_line(time_ns=at_ns))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        assert rows(path, "spans") == 4
        writer.run_maintenance(NOON_NS + DAY_NS + 30 * MINUTE_NS)
    assert rows(path, "parts") == 1
    assert LiveStore(path).count_requests(WALL) == 3


def test_requests_that_wait_take_no_room_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        limit = writer.size + 20_000
    with writing(path, Limits(max_bytes=limit)) as writer:
        put(writer, sample_line(*(f"m.{os.urandom(500).hex()}(/m.py:1)" for _ in range(100)), time_ns=NOON_NS))
        assert writer.size > limit
        writer.run_maintenance(NOON_NS)
    assert (rows(path, "requests"), rows(path, "parts")) == (1, 1)


def test_a_reader_forgets_the_spans_that_the_store_has_or_has_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        store = LiveStore(path)
        put(writer, span_line("GET /", "1" * 16, times_ns=(NOON_NS, NOON_NS + 9), service="shop"))
        store.refresh()
        assert store.count_requests(WALL) == 1
        writer.run_maintenance(NOON_NS, hold_ns=0)
        store.refresh()
        assert not store.recording.spans
        assert [span.name for span in store.spans_of(TRACE)] == ["GET /"]
        writer.run_maintenance(NOON_NS + 9 * DAY_NS, hold_ns=0)
        store.refresh()
        assert not store.spans_of(TRACE)


def five_days(path: Path) -> None:
    """Make a store of a sample and a request at each noon; the last is now."""
    with writing(path) as writer:
        for day in range(5):
            at_ns = NOON_NS + day * DAY_NS
            span = span_line("GET /", f"{day:016x}", times_ns=(at_ns, at_ns + 9), service="shop")
            put(writer, sample_line(time_ns=at_ns), span, received_ns=at_ns)
            writer.run_maintenance(at_ns, hold_ns=0)


def test_requests_are_not_counted_where_samples_have_outlived_their_spans(tmp_path: Path) -> None:
    five_days(tmp_path / "store.db")
    store = LiveStore(tmp_path / "store.db")
    border_ns = NOON_NS + DAY_NS + 9  # the end of the newest span that is gone
    kept = Selection("samples", border_ns)
    assert (store.count_requests(kept), store.recording.weights(kept).sum()) == (3, 3)
    for before in (WALL, Selection("wall", border_ns - 1), Selection("wall", NOON_NS, NOON_NS + 3 * DAY_NS)):
        with pytest.raises(ValueError, match=r"spans that ended until 2024-10-05T12:00:01Z are deleted: choose later"):
            store.count_requests(before)


def test_requests_are_not_counted_where_spans_went_to_make_room(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for place in range(500):
            put(writer, span_line("GET /", f"{place:016x}", "", (NOON_NS, NOON_NS + place), ("q" * 500,)))
        put(writer, sample_line(time_ns=NOON_NS), sample_line(time_ns=NOON_NS + 9))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        limit = writer.size * 9 // 10
        whole = LiveStore(path)
        assert whole.count_requests(WALL) == 500
    with writing(path, Limits(max_bytes=limit)) as writer:
        writer.run_maintenance(NOON_NS)
    whole.refresh()
    assert whole.recording.weights(Selection("samples")).sum() == 2
    with pytest.raises(ValueError, match="are deleted"):
        whole.count_requests(WALL)


def of_versions(*versions: str) -> Selection:
    return Selection("wall", filters={"version": frozenset(versions)})


def test_requests_are_counted_by_version_with_and_without_parts(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        store = LiveStore(path)
        for number, version in enumerate(("1.0", "1.1", "1.1", "")):
            span = span_line("GET /", f"{number:016x}", times_ns=(NOON_NS, NOON_NS + 9), service="shop")
            put(writer, of_version(span, version))
        for _ in range(2):
            store.refresh()
            counts = [store.count_requests(of_versions(version)) for version in ("1.0", "1.1", "", "\udcff")]
            assert counts == [1, 2, 1, 0]
            assert store.count_requests(of_versions("1.0", "1.1")) == 3
            writer.run_maintenance(NOON_NS, hold_ns=0)


FORMATS = {
    1: "DROP TABLE first_spans",
    2: """
        DROP INDEX first_spans_by_time;
        ALTER TABLE first_spans RENAME TO newer;
        CREATE TABLE first_spans (
            trace TEXT, id TEXT, start_ns INTEGER, end_ns INTEGER, service TEXT, name TEXT, PRIMARY KEY (trace, id)
        ) WITHOUT ROWID;
        CREATE INDEX first_spans_by_time ON first_spans (start_ns, service, name, trace, end_ns);
        INSERT INTO first_spans SELECT trace, id, start_ns, end_ns, service, name FROM newer;
        DROP TABLE newer""",
    3: "",
}


def make_older(path: Path, form: int) -> None:
    """Make a store as older versions wrote it."""
    with sqlite3.connect(path) as connection:
        connection.executescript(FORMATS[form])
        connection.execute("DROP TABLE deleted_spans")
        for trace, span, content in connection.execute("SELECT trace, id, content FROM spans").fetchall():
            without_version = json.dumps(json.loads(content)[:7])
            connection.execute(
                "UPDATE spans SET content = ? WHERE trace = ? AND id = ?", (without_version, trace, span)
            )
        connection.execute(f"PRAGMA user_version = {form}")
    connection.close()


@pytest.mark.parametrize("form", FORMATS)
def test_a_store_of_an_older_format_is_read_and_upgraded_when_written(tmp_path: Path, form: int) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for number in "12":
            put(writer, span_line("GET /", number * 16, times_ns=(NOON_NS, NOON_NS + 9), service="shop"))
        put(writer, span_line("query", "3" * 16, "2" * 16, (NOON_NS, NOON_NS + 9), service="shop"))
        writer.run_maintenance(NOON_NS, hold_ns=0)
    make_older(path, form)
    before = LiveStore(path)
    assert [before.count_requests(asked) for asked in (WALL, of_versions(""), of_versions("1.1"))] == [2, 2, 0]
    with writing(path) as writer:
        assert rows(path, "first_spans") == LiveStore(path).count_requests(of_versions("")) == 2
        new = span_line("GET /", "4" * 16, times_ns=(NOON_NS, NOON_NS + 9), service="shop")
        put(writer, of_version(new, "1.1"))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        for store in (before, LiveStore(path)):
            store.refresh()
            counts = [store.count_requests(asked) for asked in (WALL, of_versions(""), of_versions("1.1"))]
            assert counts == [3, 2, 1]


@pytest.mark.parametrize("form", FORMATS)
def test_an_older_store_may_lack_the_spans_of_what_is_summed_up(tmp_path: Path, form: int) -> None:
    path = tmp_path / "store.db"
    five_days(path)
    make_older(path, form)
    border_ns = NOON_NS + 2 * DAY_NS + 1
    for _ in range(2):
        store = LiveStore(path)
        assert store.count_requests(Selection("wall", border_ns)) == 2
        with pytest.raises(ValueError, match="are deleted"):
            store.count_requests(Selection("wall", border_ns - 1))
        with writing(path):  # brings it up to date
            pass


def test_spans_with_wrong_ids_keep_no_others_from_being_counted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        good = span_line("GET /", times_ns=(NOON_NS, NOON_NS + 9), service="shop")
        put(writer, *(good.replace(TRACE, trace) for trace in ("\\udcff", "x" * 10_000, TRACE)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
    assert rows(path, "spans") == rows(path, "first_spans") == 1
    assert LiveStore(path).count_requests(WALL) == 1
