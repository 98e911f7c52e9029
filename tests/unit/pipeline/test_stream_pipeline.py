"""The pipeline of a stream that a real run has left: samples, profiles, and what remains of one that is cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from recorded_stream import LABELS, PERIODS, SPAN, Recorded, record_ends, record_run

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.model import DataType, EventKind
from splunk_profiler.pipeline.live_heap import LIVE_HEAP
from splunk_profiler.pipeline.record_pipeline import ProfilePipeline, SamplePipeline
from splunk_profiler.pipeline.stream_pipeline import PipelineSettings, RecordPipeline, StreamPipeline
from splunk_profiler.samples import InstrumentationSource, Profile, Sample
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot
from splunk_profiler.stream.codec import RecordDecoder, StreamError, encode
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import (
    HEADER,
    EndpointRecord,
    EndRecord,
    LostRecord,
    SnapshotRecord,
    StartRecord,
    TraceRecord,
)
from splunk_profiler.stream.writer import StreamWriter

NAMES = ("MainThread", "waits", "held", "ends", "renamed")
HOUR_NS = 3_600_000_000_000


@dataclass
class Piped:
    """A pipeline and the records that it has delivered; it must never log an error of its own."""

    sends_profiles: bool = True
    tracing_stacks_only: bool = False
    kinds: tuple[EventKind, ...] = (GC_KIND,)
    records: list[Any] = field(default_factory=list)
    reader: StreamReader = field(default_factory=StreamReader)

    def __post_init__(self) -> None:
        settings = PipelineSettings(
            PERIODS,
            skips_idle=self.sends_profiles and not self.tracing_stacks_only,
            tracing_stacks_only=self.tracing_stacks_only,
        )
        self.pipeline = StreamPipeline(settings, self._make_records)

    def _make_records(self, pipeline: StreamPipeline) -> RecordPipeline:
        if self.sends_profiles:
            return ProfilePipeline(self.records.extend, HOUR_NS, self.kinds, pipeline)
        return SamplePipeline(self.records.extend)

    def read(self, data: bytes) -> None:
        """Take further bytes of the stream."""
        for item in self.reader.feed(data):
            self.pipeline.take(item)

    def feed(self, data: bytes) -> list[Any]:
        """Take the rest of a stream and return all records."""
        self.read(data)
        self.pipeline.close()
        return self.records


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return record_run()


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert not [record for record in caplog.records if "pipeline" in record.getMessage()]


Counts = Counter[tuple[str, tuple[str, ...]]]


def sampled(samples: list[Sample]) -> Counts:
    """Count samples of threads by name and functions; those of internal threads of the test run do not matter."""
    return Counter(
        (one.thread.thread.name, tuple(frame.function for frame in one.thread.stack.frames))
        for one in samples
        if one.event is None and one.thread.thread.name in NAMES and one.source is InstrumentationSource.CONTINUOUS
    )


def aggregated(profiles: list[Profile]) -> Counts:
    counts: Counts = Counter()
    for profile in profiles:
        for one in profile.aggregates if profile.source is InstrumentationSource.CONTINUOUS else ():
            name = dict(one.labels).get("thread.name", "")
            if one.count and name in NAMES:
                counts[str(name), tuple(frame.function for frame in one.stack.frames)] += one.count
    return counts


def by_thread(counts: Counts) -> Counter[str]:
    found: Counter[str] = Counter()
    for (name, _), count in counts.items():
        found[name] += count
    return found


def test_samples_are_those_of_each_thread_and_snapshot(recorded: Recorded) -> None:
    samples = Piped(sends_profiles=False).feed(recorded.data)
    baseline, stage = 1, recorded.snapshot_count // 3
    found = by_thread(sampled(samples))
    assert found["MainThread"] == found["waits"] == recorded.snapshot_count - baseline
    assert found["held"] == stage - baseline
    assert (found["ends"], found["renamed"]) == (stage - 1, 1)


def test_profiles_count_what_the_text_of_the_same_stream_lists(recorded: Recorded) -> None:
    samples, profiles = Piped(sends_profiles=False).feed(recorded.data), Piped().feed(recorded.data)
    by_ident = by_thread(sampled(samples)) + Counter()
    by_ident["ends"] += by_ident.pop("renamed")  # an idle thread counts under the name of its last sample
    in_profiles = by_thread(aggregated(profiles))
    in_profiles["ends"] += in_profiles.pop("renamed", 0)
    assert in_profiles == by_ident
    waits = [stack for name, stack in sampled(samples) if name == "waits"]
    assert {stack for name, stack in aggregated(profiles) if name == "waits"} == set(waits)


def test_wall_time_of_a_thread_is_the_same_in_text_and_profiles(recorded: Recorded) -> None:
    samples, profiles = Piped(sends_profiles=False).feed(recorded.data), Piped().feed(recorded.data)
    for name in ("MainThread", "waits"):
        in_text = sum(
            one.thread.wall_delta_ns
            for one in samples
            if one.thread.thread.name == name and one.source is InstrumentationSource.CONTINUOUS
        )
        in_profiles = sum(
            one.wall_ns
            for profile in profiles
            for one in profile.aggregates
            if dict(one.labels).get("thread.name") == name and profile.source is InstrumentationSource.CONTINUOUS
        )
        assert in_text == in_profiles > 0


def test_selected_trace_event_and_last_endpoint_are_in_the_profiles(recorded: Recorded) -> None:
    profiles = Piped().feed(recorded.data)
    assert {profile.source for profile in profiles} == set(InstrumentationSource)
    (traced,) = (one for one in profiles if one.source is InstrumentationSource.SNAPSHOT)
    assert {dict(one.labels)["thread.name"] for one in traced.aggregates} == {"held"}
    labels = dict(traced.aggregates[0].labels)
    assert (labels["endpoint"], labels[LABELS[0][0]]) == ("GET /cart", LABELS[0][1])
    assert f"{SPAN.trace_id:032x}" in map(str, labels.values())
    events = [one for profile in profiles for one in profile.aggregates if one.kind is not None]
    assert [(one.event_count, one.event_amount) for one in events] == [(3, 4_000_000)]


def test_block_in_use_keeps_the_last_endpoint_of_its_root(recorded: Recorded) -> None:
    pipeline = Piped().pipeline
    for item in StreamReader().feed(recorded.data):
        pipeline.take(item._replace(live_id=1) if isinstance(item, CapturedEvent) else item)
    pipeline.take_in_use()
    for root in range(100, 5100):
        pipeline.take(EndpointRecord(root, "GET /"))
    (in_use,) = pipeline.take_in_use().samples
    assert in_use.span == SPAN._replace(endpoint="GET /cart")


def test_trace_whose_end_was_lost_ends_where_the_stream_begins_anew(recorded: Recorded) -> None:
    writer = StreamWriter()
    writer.write(StartRecord("{}"))
    writer.write(TraceRecord(SPAN.trace_id, 0, 1, 0))
    of_traces = [
        sum(
            one.count
            for profile in records
            if profile.source is InstrumentationSource.SNAPSHOT
            for one in profile.aggregates
        )
        for records in (Piped().feed(recorded.data), Piped().feed(writer.take() + recorded.data))
    ]
    assert of_traces[0] == of_traces[1] > 0


def test_an_empty_heap_has_a_profile_where_memory_is_followed(recorded: Recorded) -> None:
    for kinds, expected in [((GC_KIND,), []), ((GC_KIND, LIVE_HEAP), [()])]:
        profiles = Piped(kinds=kinds).feed(recorded.data)
        assert [each.aggregates for each in profiles if each.data_type is DataType.ALLOCATION] == expected


def test_without_samples_outside_of_spans_only_the_held_thread_is_left(recorded: Recorded) -> None:
    samples = Piped(sends_profiles=False, tracing_stacks_only=True).feed(recorded.data)
    assert {sample.thread.thread.name for sample in samples} == {"held"}


@pytest.mark.parametrize("sends_profiles", [True, False])
def test_stream_that_is_cut_anywhere_has_what_came_before(recorded: Recorded, sends_profiles: bool) -> None:
    data, whole = recorded.data, [repr(one) for one in Piped(sends_profiles=False).feed(recorded.data)]
    places = {end + beside for end in record_ends(data) for beside in (-1, 0, 1)} | {0, 3}
    most = 0
    for place in sorted(place for place in places if place <= len(data)):
        records = Piped(sends_profiles=sends_profiles).feed(data[:place])
        if sends_profiles:
            count = aggregated(records).total()
            assert count >= most
            most = count
        else:
            assert [repr(one) for one in records] == whole[: len(records)]
            most = len(records)
    assert most == len(whole) if not sends_profiles else most == sampled(Piped(sends_profiles=False).feed(data)).total()


@pytest.mark.parametrize("sends_profiles", [True, False])
def test_bytes_one_by_one_give_the_records_of_the_whole(recorded: Recorded, sends_profiles: bool) -> None:
    piped = Piped(sends_profiles=sends_profiles)
    for place in range(len(recorded.data)):
        piped.read(recorded.data[place : place + 1])
    expected = Piped(sends_profiles=sends_profiles).feed(recorded.data)
    if sends_profiles:
        assert aggregated(piped.feed(b"")) == aggregated(expected)
    else:
        assert [repr(one) for one in piped.feed(b"")] == [repr(one) for one in expected]


def without(recorded: Recorded, first: int, count: int) -> bytes:
    """Return a stream that has lost the threads of some snapshots, and says so."""
    kept, seen = bytearray(HEADER), 0
    for record in RecordDecoder().feed(recorded.data):
        lost = isinstance(record, SnapshotRecord) and record.scope != 2
        if lost:
            seen += 1
        if not lost or not first < seen <= first + count:
            kept += encode(record)
        elif seen == first + count:
            kept += encode(LostRecord(count))
    return bytes(kept)


def test_lost_snapshots_leave_the_wall_time_of_an_idle_thread_whole(recorded: Recorded) -> None:
    data = without(recorded, 5, 2)
    items = [*StreamReader().feed(data)]
    assert [item.snapshots for item in items if isinstance(item, LostRecord)] == [2]
    taken = [item for item in items if isinstance(item, CapturedSnapshot) and not item.is_focused]
    assert len(taken) == recorded.snapshot_count - 2
    piped = Piped()
    walls = sum(
        one.wall_ns
        for profile in piped.feed(data)
        for one in profile.aggregates
        if dict(one.labels).get("thread.name") == "waits" and profile.source is InstrumentationSource.CONTINUOUS
    )
    # The portable walker makes no deadlines of its own captures, so their distance is that of the captures.
    assert walls == taken[-1].instant_ns - taken[-1].latency_ns - (taken[0].instant_ns - taken[0].latency_ns)
    assert by_thread(aggregated(piped.records))["waits"] == recorded.snapshot_count - 1 - 2


def test_stream_that_ends_twice_has_ended_once(recorded: Recorded) -> None:
    expected = Piped().feed(recorded.data)
    piped = Piped()
    piped.read(recorded.data)
    delivered = len(piped.records)
    assert delivered == len(expected)
    piped.read(recorded.pieces[-1])
    piped.pipeline.close()
    piped.pipeline.close(EndRecord(1, 2, 3, 4))
    piped.pipeline.tick(1 << 62)
    assert len(piped.records) == delivered


def test_time_after_the_last_snapshot_needs_an_end_that_says_it(recorded: Recorded) -> None:
    def unattributed(data: bytes) -> int:
        return sum(
            one.wall_ns
            for profile in Piped().feed(data)
            for one in profile.aggregates
            if not dict(one.labels).get("thread.name")
        )

    assert unattributed(recorded.data) > unattributed(b"".join(recorded.pieces[:-1]))


def test_stream_that_cannot_be_read_leaves_what_came_before(recorded: Recorded) -> None:
    ends = record_ends(recorded.data)
    good, expected = recorded.data[: ends[-2]], Piped(sends_profiles=False).feed(recorded.data[: ends[-2]])
    piped = Piped(sends_profiles=False)
    with pytest.raises(StreamError, match=f"^byte {len(good)}: a record of the unknown type"):
        piped.read(good + bytes(99))
    piped.pipeline.close()
    assert [repr(one) for one in piped.records] == [repr(one) for one in expected]


def test_profile_of_a_stream_read_late_lasts_as_long_as_its_captures(recorded: Recorded) -> None:
    captured = [item for item in StreamReader().feed(recorded.data) if isinstance(item, CapturedSnapshot | EndRecord)]
    piped = Piped()
    assert piped.pipeline.now_ns() == 0
    for piece in recorded.pieces:
        piped.pipeline.tick(captured[-1].instant_ns + HOUR_NS)  # the time at which it is read
        piped.read(piece)
    assert piped.pipeline.now_ns() == captured[-1].instant_ns
    (duration_ns,) = {one.duration_ns for one in piped.records if one.source is InstrumentationSource.CONTINUOUS}
    assert duration_ns == captured[-1].instant_ns - captured[0].instant_ns


def test_error_at_one_snapshot_does_not_end_the_stream(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Any] = []

    class Failing(SamplePipeline):
        def take(self, snapshot: Any) -> None:
            taken.append(snapshot)
            raise ValueError("one snapshot")

    pipeline = StreamPipeline(PipelineSettings(PERIODS, skips_idle=False), lambda _: Failing(taken.extend))
    for item in StreamReader().feed(recorded.data):
        pipeline.take(item)
    assert len(taken) > recorded.snapshot_count // 2
    assert [record.getMessage() for record in caplog.records] == [
        "an error in the pipeline was caught and the profiler goes on; others like it are counted, not logged"
    ]
    caplog.clear()
