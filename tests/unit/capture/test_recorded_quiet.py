"""The recorder of a stream, and deadlines that were only counted."""

from __future__ import annotations

from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawSnapshot, RawThread
from splunk_profiler.stream.captured import Item
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import MAX_QUIET_DEADLINES, LostRecord, QuietRecord

SNAPSHOT = RawSnapshot(4, 0, (RawThread(1, 2, 3, Stack((), truncated=False), None, None),), 10, False, 10, 7, 5)
READER = StreamReader()


def quiet(count: int) -> RawSnapshot:
    return RawSnapshot(5, 0, (), 10, False, 0, 7, 6, quiet_count=count)


def read(recorder: StreamRecorder) -> list[Item]:
    return [*READER.feed(recorder.take())]


def recorded() -> StreamRecorder:
    """Return a recorder whose stream has one snapshot."""
    recorder = StreamRecorder(ContextReader(lambda _: None), is_native=False)
    recorder.record_snapshot(SNAPSHOT)
    return recorder


def test_quiet_deadlines_count_like_the_snapshots_that_they_stand_for() -> None:
    recorder = recorded()
    recorder.record_snapshot(quiet(3))
    assert read(recorder)[-1] == QuietRecord(5, 6, 10, 7, 3)
    recorder.restart()
    assert read(recorder) == [LostRecord(4)]


def test_more_quiet_deadlines_than_a_record_takes_are_in_several() -> None:
    recorder = recorded()
    recorder.record_snapshot(quiet(MAX_QUIET_DEADLINES + 3)._replace(time_ns=2_000_000, instant_ns=1_000_000))
    assert read(recorder)[-2:] == [
        QuietRecord(2_000_000 - 30, 1_000_000 - 30, 10, 7, MAX_QUIET_DEADLINES),
        QuietRecord(2_000_000, 1_000_000, 10, 7, 3),
    ]
    recorder.restart()
    assert read(recorder) == [LostRecord(1 + MAX_QUIET_DEADLINES + 3)]


def test_quiet_deadlines_are_lost_with_the_snapshot_that_they_repeat() -> None:
    recorder = recorded()
    recorder.record_snapshot(quiet(3)._replace(lost_count=2))
    assert read(recorder)[-2:] == [LostRecord(2), LostRecord(3)]
    recorder.restart()
    assert read(recorder) == [LostRecord(1 + 2 + 3)]
    recorder.record_snapshot(quiet(7))
    assert read(recorder) == [LostRecord(7)]
    recorder.restart(is_paused=True)
    assert read(recorder) == [LostRecord(7)]
    recorder.record_snapshot(quiet(2))
    recorder.restart()
    assert read(recorder) == [LostRecord(9)]
