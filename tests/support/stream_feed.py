"""Captures on their way through a stream, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.model import SpanRef
from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder
from splunk_profiler.raw import RawEvent, RawSnapshot
from splunk_profiler.samples import IdleRepeat, Sample, Snapshot, UnattributedTime
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import EndRecord, QuietRecord


class StreamedBuilder:
    """A snapshot builder behind a stream."""

    def __init__(
        self,
        span_of: Callable[[Any], SpanRef | None] = lambda _context: None,
        *,
        native: bool = False,
        period_ns: int = 1,
        skips_idle: bool = False,
        include_internal: bool = False,
        labels_of: Callable[[Any], tuple[tuple[str, str], ...]] = lambda _value: (),
    ) -> None:
        contexts = ContextReader(span_of, labels_of)
        self.recorder = StreamRecorder(contexts, is_native=native, reads_nice=True)
        self.reader = StreamReader()
        self.builder = SnapshotBuilder(period_ns, skips_idle=skips_idle, include_internal=include_internal)

    def captured(self, raw: RawSnapshot) -> CapturedSnapshot:
        """Return a snapshot as it comes out of the stream."""
        self.recorder.record_renamed_threads()
        self.recorder.record_snapshot(raw)
        (captured,) = (item for item in self.reader.feed(self.recorder.take()) if isinstance(item, CapturedSnapshot))
        return captured

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """Return the samples of a snapshot."""
        return self.builder.snapshot(self.captured(raw))

    def quiet(self, raw: RawSnapshot) -> Iterator[Snapshot]:
        """Return what stands for quiet deadlines."""
        self.recorder.record_snapshot(raw)
        (deadlines,) = self.reader.feed(self.recorder.take())
        assert isinstance(deadlines, QuietRecord)
        return self.builder.quiet(deadlines)

    def set_baseline(self, raw: RawSnapshot) -> None:
        """Record the threads and their CPU times for comparison with the next snapshot."""
        self.builder.set_baseline(self.captured(raw))

    def take_idle_repeats(self) -> tuple[IdleRepeat, ...]:
        """Return the repeats up to the last snapshot."""
        return self.builder.take_idle_repeats()

    def event_samples(self, events: Sequence[RawEvent]) -> list[Sample]:
        """Return the samples of events."""
        for event in events:
            self.recorder.record_event(event)
        found = list(self.reader.feed(self.recorder.take()))
        return [self.builder.event_sample(event) for event in found if isinstance(event, CapturedEvent)]

    def unattributed(self) -> tuple[UnattributedTime, ...]:
        """Return the time since the last snapshot."""
        self.recorder.record_end()
        (end,) = self.reader.feed(self.recorder.take())
        assert isinstance(end, EndRecord)
        return self.builder.unattributed(end)
