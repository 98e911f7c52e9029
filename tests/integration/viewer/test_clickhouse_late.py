"""Records and spans that come to a database late, or ahead of their time, while the viewer shows it."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import pytest
from clickhouse_tables import Database
from faulty_relay import run_relay
from profile_factory import SPAN_ID, TRACE_ID, record_body, small_profile
from saved_samples import TRACE, profile_line, sample_line, span_line

from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import RecordReader, Stack

SECOND_NS = 10**9
SAMPLES = Selection("samples")


def seconds_ago(seconds: float) -> int:
    return time.time_ns() - int(seconds * SECOND_NS)


def insert_profile(database: Database, time_ns: int, seconds: float) -> None:
    profile = replace(small_profile(), time_ns=time_ns, duration_ns=int(seconds * SECOND_NS))
    database.insert([profile_line(record_body(profile), time_ns=time_ns)])


def spans_in(recording: Recording) -> set[str]:
    return {name for name, _ in recording.facet_values(SAMPLES)["span"].values}


def test_one_clock_that_is_fast_hides_no_samples_of_others(database: Database) -> None:
    database.make_tables("by_timestamp_time")
    database.insert(sample_line(time_ns=seconds_ago(seconds)) for seconds in (600, -7200))
    assert ClickHouse(database.address, database.environment).recording.weights(SAMPLES).sum() == 1


def test_new_records_are_added_once_when_late_ones_have_come_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=seconds_ago(600))])
    shown, waiting = (
        ClickHouse(database.address, database.environment, refresh_ns=seconds * SECOND_NS, lag_ns=100 * SECOND_NS)
        for seconds in (0, 60)
    )
    version = shown.version
    database.insert([sample_line(time_ns=seconds_ago(90))] * 2)
    shown.refresh()
    assert (shown.version, shown.recording.weights(SAMPLES).sum()) == (version, 1)
    later_ns = time.time_ns() + 20 * SECOND_NS
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    for each, count in ((shown, 3), (shown, 3), (waiting, 1)):
        each.refresh()
        assert (each.version, each.recording.weights(SAMPLES).sum()) == (version + (count > 1), count)


def test_a_span_that_ends_after_its_samples_were_read_names_them(database: Database) -> None:
    time_ns = seconds_ago(40)
    profile = record_body(replace(small_profile(), time_ns=time_ns))
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=time_ns), profile_line(profile, time_ns=time_ns)])
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    stretch = replace(SAMPLES, since_ns=time_ns, until_ns=time_ns + SECOND_NS)
    before = spans_in(shown.recording)
    assert before == spans_in(shown.recording_of(stretch)) == {"(span not received)", "(outside of spans)"}
    times_ns = time_ns - SECOND_NS, time.time_ns()
    spans = (
        span_line("job", times_ns=times_ns),
        span_line("SELECT", SPAN_ID, times_ns=times_ns).replace(TRACE, TRACE_ID),
    )
    for span, names in zip(spans, ({"job", *before}, {"job", "SELECT", "(outside of spans)"}), strict=True):
        version = shown.version
        database.insert([span])
        shown.refresh()
        assert shown.version > version
        assert names == spans_in(shown.recording) == spans_in(shown.recording_of(stretch))
    assert "job" in dict(shown.recording.facet_values(SAMPLES)["endpoint"].values)


def test_a_stretch_that_waits_for_spans_asks_again_only_after_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_ns = seconds_ago(40)
    stretch = replace(SAMPLES, since_ns=time_ns, until_ns=time_ns + SECOND_NS)
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=time_ns)])
    with run_relay(database.port) as (relay, port):
        shown = ClickHouse(f"clickhouse://127.0.0.1:{port}/{database.name}", database.environment)
        shown.recording_of(stretch)
        database.insert([span_line("job", times_ns=(time_ns, time.time_ns()))])
        relay.questions = 0
        assert spans_in(shown.recording_of(stretch)) == {"(span not received)"}
        assert relay.questions == 0
        later_ns = time.time_ns() + 5 * SECOND_NS
        monkeypatch.setattr(time, "time_ns", lambda: later_ns)
        assert spans_in(shown.recording_of(stretch)) == {"job"}


@pytest.mark.parametrize("with_traces", [True, False])
def test_readers_that_wait_for_spans_keep_no_stacks(database: Database, with_traces: bool) -> None:
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, Stack | RecordReader)}
    time_ns = seconds_ago(600)
    database.make_tables("by_timestamp_time", with_traces=with_traces)
    database.insert(sample_line(f"shop.step_{number}(/srv/shop.py:1)", time_ns=time_ns) for number in range(100))
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    shown.recording_of(replace(SAMPLES, since_ns=time_ns, until_ns=time_ns + SECOND_NS))
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, Stack | RecordReader) and id(each) not in before]
    assert not [each for each in kept if isinstance(each, Stack)]
    assert len(kept) == (2 if with_traces else 0)  # of the whole and of the stretch, while spans may come


@pytest.mark.parametrize("seconds", [60, 290, 600])
def test_a_profile_is_read_when_it_comes_however_late(
    database: Database, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    now_ns = time.time_ns()
    database.make_tables("by_timestamp_time")
    for ago in (900, 890, 880, 870):
        insert_profile(database, now_ns - ago * SECOND_NS, seconds=10)
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    stretch = replace(SAMPLES, since_ns=now_ns - 700 * SECOND_NS, until_ns=now_ns)
    assert not shown.recording_of(stretch).count()
    insert_profile(database, now_ns - seconds * SECOND_NS, seconds=seconds)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 30 * SECOND_NS)
    shown.refresh()
    assert shown.recording.weights(SAMPLES).sum() == 5 * 1000
    assert shown.recording_of(stretch).weights(SAMPLES).sum() == 1000
    version = shown.version
    shown.refresh()
    assert (shown.version, shown.recording.weights(SAMPLES).sum()) == (version, 5 * 1000)


def test_after_a_pause_profiles_of_a_minute_are_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    database.make_tables("by_timestamp_time")
    insert_profile(database, now_ns - 600 * SECOND_NS, seconds=60)
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    for seconds in (300, 1800):
        monkeypatch.setattr(time, "time_ns", lambda passed=seconds: now_ns + passed * SECOND_NS)
        shown.refresh()
    insert_profile(database, now_ns + 1750 * SECOND_NS, seconds=60)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 1830 * SECOND_NS)
    shown.refresh()
    assert shown.recording.weights(SAMPLES).sum() == 2 * 1000


def test_parts_of_a_profile_that_come_apart_are_read_once(database: Database) -> None:
    time_ns = seconds_ago(100)
    profiles = [replace(small_profile(), time_ns=time_ns, duration_ns=seconds * SECOND_NS) for seconds in (10, 11, 12)]
    lines = [profile_line(record_body(profile), time_ns=time_ns) for profile in profiles]
    database.make_tables("by_timestamp_time")
    database.insert([lines[0], lines[0]])  # that was sent twice
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    for line, count in ((lines[1], 2), (lines[2], 3), (lines[0], 3)):
        database.insert([line])
        shown.refresh()
        assert shown.recording.weights(SAMPLES).sum() == count * 1000


@pytest.mark.parametrize("seconds", [600, 3600])
def test_a_profile_of_a_stopped_process_delays_nothing(database: Database, seconds: int) -> None:
    database.make_tables("by_timestamp_time")
    insert_profile(database, seconds_ago(1200), seconds=seconds)
    database.insert([sample_line(time_ns=seconds_ago(60))])
    shown = ClickHouse(database.address, database.environment)
    assert shown.recording.weights(SAMPLES).sum() == 1001
    said = "A profile is as long as 60 minutes: all its samples are at its start."
    assert (said in shown.note) == (seconds == 3600)


def test_the_first_span_of_a_service_that_ends_last_is_the_endpoint(database: Database) -> None:
    time_ns = seconds_ago(40)
    times_ns = time_ns - SECOND_NS, time.time_ns()
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=time_ns)] * 2)
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    stretch = replace(SAMPLES, since_ns=time_ns, until_ns=time_ns + SECOND_NS)
    shown.recording_of(stretch)
    for span, endpoint in (
        (span_line("scan", parent="2" * 16, times_ns=times_ns, service="shop"), "scan"),
        (span_line("GET /search", "3" * 16, "1" * 16, times_ns, service="shop"), "scan"),
        (span_line("route", "2" * 16, "3" * 16, times_ns, service="shop"), "GET /search"),
        (span_line("click", "1" * 16, times_ns=times_ns, service="browser"), "GET /search"),
    ):
        database.insert([span])
        shown.refresh()
        for recording in (shown.recording, shown.recording_of(stretch)):
            facets = recording.facet_values(SAMPLES)
            assert dict(facets["endpoint"].values) == {endpoint: 2}
            assert dict(facets["span"].values) == {"scan": 2}
