"""Tests of the store of samples: what is put in comes out, also after it was joined, summed up and thinned out."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from permissions import mode
from sample_stores import NOON_NS, WALL, put, rows, writing
from saved_samples import SPAN, TRACE, allocation_line, sample_line, span_line

from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, MINUTE_NS, Facets, Sample, Selection, Span
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.store_writer import Limits, StoreWriter
from splunk_profiler.viewer.trees import top_table


def of(recording: Recording) -> dict[str, object]:
    """Return what the page shows of a recording."""
    top = top_table(recording.stacks, recording.weights(WALL))
    return {
        "values": (recording.values, recording.units),
        "period": recording.period_ns(),
        "facets": {name: dict(found.values) for name, found in recording.facet_values(WALL).items()},
        "allocated": recording.weights(Selection("alloc_space")).sum(),
        "top": {(recording.functions[row.function], row.own, row.total) for row in top},
        "timeline": recording.timeline(WALL, "endpoint", 5),
    }


def lines() -> list[str]:
    hostile = sample_line("\udcff<b>.run(/srv/\udc80.py:9)", service="\udcff", time_ns=NOON_NS + 5, span="")
    return [
        sample_line(time_ns=NOON_NS),
        sample_line("a.b(/a.py:1)", "c.d(/c.py:2)", time_ns=NOON_NS + 2 * HOUR_NS, state="waiting"),
        hostile,
        span_line("GET /", times_ns=(NOON_NS, NOON_NS + 10), host_stacks=("q83vEg==",)),
        sample_line(time_ns=NOON_NS - 3 * HOUR_NS),
        allocation_line(4096, time_ns=NOON_NS + 7),
    ]


def test_a_store_shows_what_a_directory_does_with_and_without_parts(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text("".join(lines()), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    expected = of(files.recording)
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, *lines())
        store = LiveStore(path)
        seen = [of(store.recording)]
        for now_ns in (NOON_NS, NOON_NS + MINUTE_NS, NOON_NS + 8 * HOUR_NS):
            writer.run_maintenance(now_ns)
            version = store.version
            store.refresh()
            seen.append(of(store.recording))
            assert [span.host_stacks for span in store.spans_of(TRACE)] == [("q83vEg==",)]
        assert rows(path, "requests") == 0
        version = store.version
        store.refresh()
        assert store.version == version
    assert seen == [expected] * 4
    assert of(LiveStore(path).recording) == expected
    imported = tmp_path / "imported.db"
    with writing(imported) as writer:
        writer.add(files.recording)
    assert of(LiveStore(imported).recording) == expected


def test_what_is_appended_is_seen_by_readers_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        readers = [LiveStore(path), LiveStore(path)]
        for count in range(1, 4):
            put(writer, sample_line(time_ns=NOON_NS + count))
            for reader in readers:
                reader.refresh()
                assert reader.recording.weights(Selection("samples")).sum() == count
        writer.run_maintenance(NOON_NS, hold_ns=0)
        put(writer, sample_line("other.function(/o.py:1)"))
        for reader in readers:
            reader.refresh()
            assert reader.recording.weights(Selection("samples")).sum() == 4


def test_a_late_span_names_its_samples_when_their_hour_is_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS), sample_line(time_ns=NOON_NS, span="1" * 16))
        writer.run_maintenance(NOON_NS + MINUTE_NS)
        put(writer, span_line("GET /", times_ns=(NOON_NS, NOON_NS + 1)), received_ns=NOON_NS + MINUTE_NS)
        put(writer, sample_line(time_ns=NOON_NS + 1), received_ns=NOON_NS + MINUTE_NS)
        writer.run_maintenance(NOON_NS + 2 * MINUTE_NS)
        store = LiveStore(path)
        assert dict(store.recording.facet_values(Selection("samples"))["endpoint"].values) == {
            "(span not received)": 2,
            "GET /": 1,
        }
        writer.run_maintenance(NOON_NS + 2 * HOUR_NS)
        store.refresh()
    assert rows(path, "parts") == 1
    assert dict(store.recording.facet_values(Selection("samples"))["endpoint"].values) == {
        "(span not received)": 1,
        "GET /": 2,
    }


def test_a_span_that_comes_while_its_samples_wait_names_them(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS), received_ns=NOON_NS)
        put(writer, span_line("GET /"), received_ns=NOON_NS + 1)
        writer.run_maintenance(NOON_NS, hold_ns=0)
    assert rows(path, "requests") == 1
    assert dict(LiveStore(path).recording.facet_values(WALL)["endpoint"].values) == {"GET /": 10**9}


def test_old_samples_become_sums_by_minute_without_traces(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, *(sample_line(time_ns=NOON_NS + second * 10**9) for second in range(150)), span_line("GET /"))
        writer.run_maintenance(NOON_NS + MINUTE_NS)
        store = LiveStore(path)
        before = of(store.recording)
        assert store.recording.count() == 150
        writer.run_maintenance(NOON_NS + 2 * DAY_NS)
        store.refresh()
        after = of(store.recording)
        assert store.recording.count() == 3
        writer.run_maintenance(NOON_NS + 2 * DAY_NS + 1)
        assert rows(path, "parts") == 1
    assert after["top"] == before["top"]
    assert dict(store.recording.facet_values(WALL)["trace"].values) == {"": 150 * 10**9}
    assert dict(store.recording.facet_values(WALL)["endpoint"].values) == {"GET /": 150 * 10**9}


def test_a_stored_timeline_has_no_steps_shorter_than_profiles_or_sums(tmp_path: Path) -> None:
    recording = Recording()
    recording.units.update(wall="nanoseconds")
    facets = recording.facets_id(Facets(service="shop"))
    for second in (0, 200):
        sample = Sample(NOON_NS + second * 10**9, recording.stacks.index(b""), facets, {"wall": 1}, duration_ns=10**10)
        recording.add(sample)
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for _ in range(2):
            writer.add(recording)
        store = LiveStore(path)
        for now_ns, seconds in ((NOON_NS, 10), (NOON_NS + 2 * HOUR_NS, 10), (NOON_NS + 2 * DAY_NS, 60)):
            writer.run_maintenance(now_ns)
            store.refresh()
            assert store.recording.timeline(WALL, "service", 120).step_ns == seconds * 10**9


def heap(recording: Recording, time_ns: int, process: str, allocated: int, in_use: int) -> None:
    recording.units.update(alloc_space="bytes", inuse_space="bytes")
    recording.note_heap(process, time_ns)
    stack = recording.stacks.index(np.array([recording.function_id("main", "main.py", ""), 1], np.int32).tobytes())
    facets = recording.facets_id(Facets(service="shop", process=process))
    recording.add(Sample(time_ns, stack, facets, {"alloc_space": allocated, "inuse_space": in_use}))


def test_of_memory_in_use_the_last_profile_of_each_minute_stays(tmp_path: Path) -> None:
    recording = Recording()
    for time_ns, process, in_use in ((1, "1", 100), (2, "1", 7), (1, "2", 30), (MINUTE_NS, "1", 5)):
        heap(recording, NOON_NS + time_ns, process, 1000, in_use)
    path = tmp_path / "store.db"
    with writing(path) as writer:
        writer.add(recording)
        writer.run_maintenance(NOON_NS + 2 * DAY_NS)
    thinned = LiveStore(path).recording
    assert thinned.weights(Selection("alloc_space")).sum() == 4000
    for until_ns, total in ((None, 35), (NOON_NS + MINUTE_NS, 37)):
        assert thinned.weights(Selection("inuse_space", until_ns=until_ns)).sum() == total
        assert recording.weights(Selection("inuse_space", until_ns=until_ns)).sum() == total


def test_what_is_too_old_goes_with_all_that_only_it_refers_to(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line("old.function(/old.py:1)", service="old", time_ns=NOON_NS), span_line("old", "2" * 16))
        put(writer, sample_line("new.function(/new.py:1)", service="new", time_ns=NOON_NS + 6 * DAY_NS))
        store = LiveStore(path)
        writer.run_maintenance(NOON_NS + 6 * DAY_NS + MINUTE_NS)
        store.refresh()
        assert {name for name, _ in store.recording.facet_values(WALL)["service"].values} == {"old", "new"}
        writer.run_maintenance(NOON_NS + 9 * DAY_NS)
        store.refresh()
    assert {name for name, _ in store.recording.facet_values(WALL)["service"].values} == {"new"}
    assert [rows(path, table) for table in ("functions", "stacks", "facets", "parts", "spans")] == [1, 1, 1, 1, 0]
    assert {name for name, _ in LiveStore(path).recording.facet_values(WALL)["service"].values} == {"new"}


def test_the_oldest_goes_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        empty = writer.size
    limit = empty + 200_000
    with writing(path, Limits(max_bytes=limit)) as writer:
        for hour in range(12):
            names = [f"module_{hour}.function_{place}(/{os.urandom(20).hex()}.py:1)" for place in range(200)]
            put(writer, *(sample_line(name, time_ns=NOON_NS + hour * HOUR_NS) for name in names))
            writer.run_maintenance(NOON_NS + hour * HOUR_NS, hold_ns=0)
            writer.run_maintenance(NOON_NS + hour * HOUR_NS, hold_ns=0)
            assert writer.size <= limit
    kept = LiveStore(path).recording
    assert 0 < kept.count() < 12 * 200
    assert kept.period_ns()[1] == NOON_NS + 11 * HOUR_NS + 1
    assert path.stat().st_size <= 2 * limit


def thousand_spans(hour: int) -> Recording:
    recording = Recording()
    for place in range(1000):
        trace, span, start_ns = f"{hour:016x}{place:016x}", f"{place:016x}", NOON_NS + hour * HOUR_NS + place
        recording.spans[trace] = {span: Span(span, "", "GET /", "shop", start_ns, start_ns + 1, ())}
    return recording


def test_spans_that_take_most_of_the_room_go_before_samples(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    limit = 500_000
    with writing(path, Limits(max_bytes=limit)) as writer:
        for hour in range(4):
            writer.add(thousand_spans(hour))
            put(writer, sample_line(time_ns=NOON_NS + hour * HOUR_NS))
            writer.run_maintenance(NOON_NS + hour * HOUR_NS, hold_ns=0)
            assert writer.size <= limit
    assert LiveStore(path).recording.weights(Selection("samples")).sum() == 4
    assert 500 < rows(path, "spans") == rows(path, "first_spans") < 2000
    assert LiveStore(path).spans_of(f"{3:016x}{999:016x}")


def test_the_file_becomes_smaller_when_spans_alone_go(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for hour in range(2):
            writer.add(thousand_spans(hour))
        limit = writer.size * 6 // 10
    with writing(path, Limits(max_bytes=limit)) as writer:
        writer.run_maintenance(NOON_NS)
        assert path.stat().st_size == writer.size <= limit


def test_spans_go_with_the_samples_of_their_time(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for hour in range(10):
            times_ns = NOON_NS + hour * HOUR_NS, NOON_NS + hour * HOUR_NS + 1
            names = [f"m{hour}.f{call}(/{os.urandom(20).hex()}.py:1)" for call in range(500)]
            put(writer, sample_line(*names, time_ns=times_ns[0]), span_line("GET /", f"{hour:016x}", times_ns=times_ns))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        limit = writer.size * 6 // 10
    with writing(path, Limits(max_bytes=limit)) as writer:
        writer.run_maintenance(NOON_NS + 10 * HOUR_NS)
        assert path.stat().st_size == writer.size <= limit
    kept = LiveStore(path)
    assert 0 < kept.recording.count() == rows(path, "spans") < 7


def test_no_more_parts_go_than_needed_when_stacks_take_most_of_the_room(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    calls = [[f"m{hour}.f{call}(/{os.urandom(20).hex()}.py:1)" for call in range(500)] for hour in range(10)]
    with writing(path) as writer:
        for hour, names in enumerate(calls):
            put(writer, sample_line(*names, time_ns=NOON_NS + hour * HOUR_NS))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        limit = writer.size * 8 // 10
    with writing(path, Limits(max_bytes=limit)) as writer:
        writer.run_maintenance(NOON_NS + 10 * HOUR_NS)
        assert writer.size <= limit
    kept = LiveStore(path).recording
    assert 5 <= kept.count() < 10
    assert kept.period_ns()[1] == NOON_NS + 9 * HOUR_NS + 1


def test_a_clock_that_goes_back_costs_no_request(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS), received_ns=NOON_NS + HOUR_NS)
        put(writer, sample_line(time_ns=NOON_NS + 1), received_ns=NOON_NS)
        writer.run_maintenance(NOON_NS, hold_ns=0)
        assert rows(path, "requests") == 1
        assert LiveStore(path).recording.weights(Selection("samples")).sum() == 2


def test_what_cannot_be_read_is_counted_before_and_after_it_became_a_part(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line().replace("#1", ""), sample_line())
        assert LiveStore(path).unread == 1
        writer.run_maintenance(NOON_NS, hold_ns=0)
    assert LiveStore(path).unread == 1


def test_a_store_has_one_writer_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, sample_line())
        assert all(mode(file) == 0o600 for file in tmp_path.iterdir())
        with pytest.raises(SourceError, match=r"store\.db is being written by another process"):
            StoreWriter(path)
    with writing(path):
        pass


def text_file(path: Path) -> None:
    path.write_text("SQLite format 3\0" + "hostile" * 5000)


def of_something_else(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE parts (id INTEGER)")
    connection.close()


def of_a_newer_version(path: Path) -> None:
    with writing(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 5")
    connection.close()


def half(path: Path) -> None:
    with writing(path) as writer:
        put(writer, *(sample_line(f"m.f{place}(/f.py:1)") for place in range(500)))
        writer.run_maintenance(NOON_NS, hold_ns=0)
    os.truncate(path, path.stat().st_size // 2)


def with_a_damaged_part(path: Path) -> None:
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS))
        writer.run_maintenance(NOON_NS, hold_ns=0)
    with sqlite3.connect(path) as connection:
        ((content,),) = connection.execute("SELECT content FROM parts")
        middle = len(content) // 2
        connection.execute("UPDATE parts SET content = ?", (content[:middle] + bytes(50) + content[middle + 50 :],))
    connection.close()


def missing(path: Path) -> None:
    del path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (text_file, "is damaged"),
        (of_something_else, "is a database of something else"),
        (of_a_newer_version, "has format 5, this version reads 4: install a newer splunk-profiler"),
        (half, "is damaged"),
        (with_a_damaged_part, "is damaged"),
        (missing, "does not exist"),
    ],
)
def test_a_file_that_is_no_store_or_is_damaged_is_an_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "store.db"
    make(path)
    with pytest.raises(SourceError, match=said) as raised:
        LiveStore(path)
    assert str(path) in str(raised.value)


def test_a_damaged_part_is_an_error_for_the_writer_too_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with_a_damaged_part(path)
    with writing(path) as writer:
        put(writer, sample_line(time_ns=NOON_NS))
        writer.run_maintenance(NOON_NS, hold_ns=0)
        with pytest.raises(SourceError, match="is damaged"):
            writer.run_maintenance(NOON_NS + 3 * DAY_NS)
    assert rows(path, "parts") == 2


def test_spans_are_found_by_their_trace_with_and_without_parts(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, span_line("GET /", times_ns=(NOON_NS, NOON_NS + 1)))
        store = LiveStore(path)
        assert [span.id for span in store.spans_of(TRACE)] == [SPAN]
        writer.run_maintenance(NOON_NS, hold_ns=0)
        put(writer, span_line("inner", "2" * 16, times_ns=(NOON_NS, NOON_NS + 1)))
        store.refresh()
        assert sorted(span.name for span in store.spans_of(TRACE)) == ["GET /", "inner"]
        assert store.spans_of("\udcff") == []
