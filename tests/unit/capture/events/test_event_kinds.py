"""Kinds of events: a file and a line in the list put a kind into profiles and records."""

from __future__ import annotations

import base64
import gzip
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import _RLock
from typing import Any

import pytest
from made_up_events import KIND, Objects, registered
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource
from profile_schema import decode
from stream_feed import StreamedBuilder

from splunk_profiler.capture import events
from splunk_profiler.capture.events import EventSources, RegisteredSource, lock_holders, make_sources
from splunk_profiler.capture.events.garbage_collections import GC_KIND, make_gc_source
from splunk_profiler.capture.events.lock_holders import make_lock_holder_source
from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.capture.walker import Ticker, choose_walker, make_ticker
from splunk_profiler.config import Config
from splunk_profiler.export.otlp.profile_records import ProfileEncoder
from splunk_profiler.model import DataType, Event, EventKind, Frame, Stack, ValueType
from splunk_profiler.pipeline.aggregator import Aggregator
from splunk_profiler.pipeline.window import Bounds
from splunk_profiler.raw import RawEvent
from splunk_profiler.samples import Profile, Sample, Snapshot, Thread, ThreadSample

PROFILES = Config(enabled=True, data_format="pprof-gzip-base64", gc_events="false", memory_enabled=True)
SECOND_NS = 1_000_000_000
LOCKS = EventKind("lock", ValueType("waits", "count"), ValueType("delay", "nanoseconds"))


@pytest.fixture
def ticker() -> Iterator[Ticker]:
    made = make_ticker(choose_walker(), None, lambda _: None, 100)
    yield made
    made.stop()


def events_of(sources: EventSources) -> list[RawEvent]:
    return [each for each in sources.drain() if isinstance(each, RawEvent)]


def sample(number: int = 1, event: Event | None = None) -> Sample:
    stack = Stack((Frame("shop", f"work_{number}", "shop.py", 7, 5),), truncated=False)
    thread = ThreadSample(Thread(1, "worker-1", 7, 8), stack, 0, 0, 0, running=True, waiting_on="")
    return Sample(number, SECOND_NS, thread, None, (), event)


def profiles_of(
    *samples: Sample, bounds: Bounds | None = None, kinds: Sequence[EventKind] | None = None
) -> list[Profile]:
    found: list[Profile] = []
    aggregator = Aggregator(
        found.extend,
        interval_ns=60 * SECOND_NS,
        bounds=bounds or Bounds(),
        kinds=events.registered_kinds(PROFILES) if kinds is None else kinds,
        monotonic_ns=lambda: SECOND_NS,
    )
    aggregator.take(Snapshot(SECOND_NS, SECOND_NS, samples))
    aggregator.close(())
    return found


def records(profiles: Sequence[Profile]) -> list[tuple[str, Any]]:
    """Return the data type of each record, and the profile in it."""
    encoded = ProfileEncoder(lambda: Resource({}), time_ns=lambda: 99).encode(profiles)
    found = []
    for record in ExportLogsServiceRequest.FromString(encoded).resource_logs[0].scope_logs[0].log_records:
        said = {pair.key: pair.value.string_value for pair in record.attributes}
        content = gzip.decompress(base64.b64decode(record.body.string_value, validate=True))
        found.append((said["profiling.data.type"], decode(content)))
    return found


def test_added_kind_has_its_own_records_and_leaves_those_of_cpu_unchanged(
    ticker: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects()
    monkeypatch.setattr(events, "REGISTERED_SOURCES", (registered(objects),))
    sources = make_sources(PROFILES, ticker, native=True)
    monkeypatch.undo()
    sources.start()
    objects.make("page", 3, 4096)
    objects.make("row", 2, 100)
    sources.stop()
    objects.make("late", 1, 1)
    capture = StreamedBuilder()
    samples = capture.event_samples(events_of(sources))
    (timer_type, timer), (own_type, own) = records(profiles_of(sample(), *samples))
    assert (timer_type, own_type) == ("cpu", "allocation")
    text = own.string_table
    assert [(text[kind.type], text[kind.unit]) for kind in own.sample_type] == [
        ("alloc_samples", "count"),
        ("alloc_space", "bytes"),
        ("objects", "count"),
        ("space", "bytes"),
    ]
    found = {}
    for each in own.sample:
        labels = {text[label.key]: text[label.str] for label in each.label if label.str}
        assert labels["source.event.name"] == "object"
        found[labels["source.event.object"]] = [*each.value][2:]
    assert found == {"page": [3, 3 * 4096], "row": [2, 200]}
    assert text[own.default_sample_type] == "alloc_space"
    assert [("cpu", timer)] == records(profiles_of(sample()))
    text = timer.string_table
    types = [text[kind.type] for kind in timer.sample_type]
    kinds = [kind for kind in events.registered_kinds(Config()) if kind.data_type is DataType.CPU]
    values = [value.name for kind in kinds for value in (kind.count, kind.amount) if value is not None]
    assert types == ["samples", "wall", "cpu", *values]


@pytest.mark.parametrize(
    ("setting", "data_format", "walkers"),
    [
        ("true", "pprof-gzip-base64", {"native", "portable"}),
        ("auto", "pprof-gzip-base64", {"native"}),  # a callback in Python may lose a signal's exception
        ("false", "pprof-gzip-base64", set()),
        ("true", "text", set()),
    ],
)
def test_collections_are_noticed_as_set_and_for_profiles_only(
    ticker: Ticker, setting: str, data_format: str, walkers: set[str]
) -> None:
    config = Config(enabled=True, data_format=data_format, gc_events=setting)
    assert {each for each in ("native", "portable") if make_gc_source(config, ticker, each == "native")} == walkers


def test_lock_holders_are_found_by_the_native_walker_from_3_11_on(ticker: Ticker) -> None:
    assert make_lock_holder_source(PROFILES, ticker, False) is None
    is_native = choose_walker().name == "native"
    has_source = make_lock_holder_source(PROFILES, ticker, is_native) is not None
    assert has_source == (is_native and sys.version_info >= (3, 11))


def test_lock_holders_are_not_looked_for_among_locks_of_other_libraries(
    ticker: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_holders, "RLock", _RLock)
    assert make_lock_holder_source(PROFILES, ticker, True) is None


def test_events_of_another_data_type_alone_give_no_cpu_profile() -> None:
    (profile,) = profiles_of(sample(1, Event(KIND, (), 2, 64)), kinds=())
    assert (profile.data_type, profile.kinds) == (DataType.ALLOCATION, (KIND,))
    assert [(one.count, one.event_count, one.event_amount) for one in profile.aggregates] == [(0, 2, 64)]


def test_event_of_an_unannounced_kind_adds_its_values() -> None:
    (profile,) = profiles_of(sample(), sample(1, Event(LOCKS, (), 2, 64)), kinds=(GC_KIND,))
    assert profile.kinds == (GC_KIND, LOCKS)
    ((_, message),) = records([profile])
    assert [[*each.value][3:] for each in message.sample] == [[0, 0, 0, 0], [0, 0, 2, 64]]


def test_profiles_of_a_data_type_have_the_values_of_all_its_kinds() -> None:
    found = profiles_of(sample(), sample(1, Event(KIND, (), 2, 64)), kinds=(LOCKS, KIND, GC_KIND))
    assert [profile.kinds for profile in found] == [(LOCKS, GC_KIND), (KIND,)]


def test_labels_that_were_dropped_are_counted_where_the_samples_are() -> None:
    room = Bounds(spans=1, threads=1, states=1, stacks=1, frames=2)
    others = [sample(number, Event(KIND, (), 1, 1)) for number in range(5, 12)]
    found = profiles_of(*[sample(number) for number in range(5)], *others, bounds=room)
    assert [(profile.data_type, profile.dropped_labels) for profile in found] == [
        (DataType.CPU, 3),
        (DataType.ALLOCATION, 7),
    ]


@pytest.mark.parametrize(
    "config",
    [
        Config(enabled=False, snapshot_enabled=True, data_format="pprof-gzip-base64", memory_enabled=True),
        Config(enabled=True, data_format="pprof-gzip-base64"),
    ],
)
def test_source_works_only_if_wanted_and_all_threads_are_profiled(
    ticker: Ticker, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects()
    monkeypatch.setattr(events, "REGISTERED_SOURCES", (registered(objects),))
    sources = make_sources(config, ticker, native=True)
    sources.start()
    objects.make("page", 1, 1)
    sources.stop()
    assert sources.drain() == []


def test_text_has_no_place_for_events_of_the_timers_profile(ticker: Ticker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(*_: object) -> EventSource | None:
        made.append("made")
        return None

    kinds = (RegisteredSource(LOCKS, make), RegisteredSource(KIND, make))
    monkeypatch.setattr(events, "REGISTERED_SOURCES", kinds)
    make_sources(Config(enabled=True), ticker, native=True)
    assert len(made) == 1
    make_sources(PROFILES, ticker, native=True)
    assert len(made) == 3


def test_failing_source_stops_no_other_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(EventSource):
        def start(self) -> None:
            raise OSError("start")

        def stop(self) -> None:
            raise OSError("stop")

        def drain(self) -> Sequence[RawEvent]:
            raise OSError("drain")

    objects = Objects()
    sources = EventSources([(LOCKS, Failing()), (KIND, objects)])
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        sources.start()
        objects.make("page", 1, 1)
        sources.stop()
        objects.make("late", 1, 1)
        assert [one.event.labels for one in events_of(sources)] == [(("source.event.object", "page"),)]
    (line,) = caplog.messages
    assert "recording events (lock)" in line


def test_a_source_that_cannot_be_made_is_left_out_and_named_in_the_log(
    ticker: Ticker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: Config, ticker: Ticker, native: bool) -> EventSource | None:
        raise OSError(config, ticker, native)

    objects = Objects()
    monkeypatch.setattr(events, "REGISTERED_SOURCES", (RegisteredSource(LOCKS, fail), registered(objects)))
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        sources = make_sources(PROFILES, ticker, native=True)
    sources.start()
    objects.make("page", 1, 1)
    sources.stop()
    assert [one.event.kind for one in events_of(sources)] == [KIND]
    (line,) = caplog.messages
    assert "starting to record events (lock)" in line


def test_kinds_have_different_names_and_so_have_their_values() -> None:
    kinds = events.registered_kinds(replace(PROFILES, memory_enabled=True, exceptions_enabled=True))
    assert {each.kind for each in events.REGISTERED_SOURCES} == {*kinds}
    assert GC_KIND in kinds
    assert len({kind.name for kind in kinds} | {"timer"}) == len(kinds) + 1
    values = [each.name for kind in kinds for each in kind.values]
    assert len({*values, "samples", "wall", "cpu"}) == len(values) + 3
