"""What comes to a database late, or ahead of its time, while the viewer shows it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from clickhouse_tables import Database
from profile_factory import SPAN_ID, TRACE_ID, record_body, small_profile
from saved_samples import TRACE, profile_line, sample_line, span_line

from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.recording import Recording

SECOND_NS = 10**9
SAMPLES = Selection("samples")


def seconds_ago(seconds: float) -> int:
    return time.time_ns() - int(seconds * SECOND_NS)


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
    shown = ClickHouse(database.address, database.environment, lag_ns=100 * 10**9)
    version = shown.version
    database.insert([sample_line(time_ns=seconds_ago(90))])
    shown.refresh()
    assert shown.version == version  # it has just been asked
    shown = ClickHouse(database.address, database.environment, refresh_ns=0, lag_ns=100 * 10**9)
    database.insert([sample_line(time_ns=seconds_ago(90))])
    shown.refresh()
    assert shown.recording.weights(SAMPLES).sum() == 1
    later_ns = time.time_ns() + 20 * SECOND_NS
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    for version in (shown.version + 1,) * 2:
        shown.refresh()
        assert shown.version == version
        assert shown.recording.weights(SAMPLES).sum() == 3


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


def test_profiles_of_a_minute_are_waited_for_until_they_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insert(time_ns: int) -> None:
        profile = replace(small_profile(), time_ns=time_ns, duration_ns=60 * SECOND_NS)
        database.insert([profile_line(record_body(profile), time_ns=time_ns)])

    now_ns = time.time_ns()
    database.make_tables("by_timestamp_time")
    insert(now_ns - 600 * SECOND_NS)
    shown = ClickHouse(database.address, database.environment, refresh_ns=0)
    insert(now_ns - 60 * SECOND_NS)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 30 * SECOND_NS)
    shown.refresh()
    assert shown.recording.weights(SAMPLES).sum() == 2 * 1000
