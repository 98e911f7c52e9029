"""Profiles that are too large for a receiver: they are exported in parts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from profile_factory import large_profile
from sample_factory import make_sample
from scripted_sink import wait_until_sent

from splunk_profiler.model import RecordCounters
from splunk_profiler.pipeline.batch_exporter import BatchExporter, QueueLimits
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Profile, Sample


class ProfileSink:
    """A sink that accepts the profiles that fit."""

    def __init__(self, fits: Callable[[Profile], bool]) -> None:
        self._fits = fits
        self.sizes: list[int] = []
        self.taken: list[Profile] = []

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """Record the profile's number of aggregates."""
        (profile,) = batch.records
        self.sizes.append(len(profile.aggregates))
        if not self._fits(profile):
            return ExportResult(ExportStatus.TOO_LARGE, "larger than max")
        self.taken.append(profile)
        return ExportResult(ExportStatus.DELIVERED)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Do nothing: exports take no time."""

    def interrupt(self) -> None:
        """Do nothing: exports take no time."""

    def shutdown(self) -> None:
        """Do nothing: exports take no time."""


def counters_after(profile: Profile, sink: ProfileSink) -> RecordCounters:
    """Return the counters after an export of `profile`."""
    batch_exporter: BatchExporter[Profile] = BatchExporter(
        sink, export_interval_ns=0, size_of=lambda _: 1, limits=QueueLimits(batch_records=1)
    )
    thread = threading.Thread(target=batch_exporter.run)
    batch_exporter.expect_run()
    thread.start()
    batch_exporter.record([profile])
    batch_exporter.stop(60)
    thread.join()
    return batch_exporter.counters()


def test_too_large_profile_is_sent_in_parts_that_have_all_of_it_once() -> None:
    whole = replace(large_profile(9, dropped_labels=4), comments=("gil",))
    sink = ProfileSink(lambda profile: len(profile.aggregates) <= 3)
    assert counters_after(whole, sink) == RecordCounters(recorded=4, delivered=4)
    assert sink.sizes == [9, 4, 2, 2, 5, 2, 3]
    assert tuple(aggregate for part in sink.taken for aggregate in part.aggregates) == whole.aggregates
    assert sum(part.dropped_labels for part in sink.taken) == 4
    assert [part.comments for part in sink.taken] == [("gil",), (), (), ()]
    assert {(part.time_ns, part.duration_ns) for part in sink.taken} == {(whole.time_ns, whole.duration_ns)}


def test_of_a_profile_only_what_is_too_large_by_itself_is_lost() -> None:
    whole = large_profile(4)
    sink = ProfileSink(lambda profile: whole.aggregates[1] not in profile.aggregates)
    assert counters_after(whole, sink) == RecordCounters(recorded=3, delivered=2, rejected=1)
    assert sink.sizes == [4, 2, 1, 1, 2]


def test_receiver_that_refuses_every_size_is_not_asked_again_and_again() -> None:
    sink = ProfileSink(lambda _: False)
    counters = counters_after(large_profile(3000), sink)
    assert len(sink.sizes) < 50
    assert (counters.delivered, counters.waiting) == (0, 0)
    assert counters.rejected == counters.recorded


def test_samples_refused_at_every_size_arrive_once_small_batches_are_taken() -> None:
    limits = iter([0] * 300)
    sizes: list[int] = []

    class SampleSink(ProfileSink):
        def export(self, batch: Batch[Any]) -> ExportResult:
            sizes.append(len(batch.records))
            return ExportResult(
                ExportStatus.DELIVERED if len(batch.records) <= next(limits, 4) else ExportStatus.TOO_LARGE
            )

    batch_exporter: BatchExporter[Sample] = BatchExporter(
        SampleSink(lambda _: True), export_interval_ns=0, size_of=lambda _: 1, limits=QueueLimits(batch_records=16)
    )
    thread = threading.Thread(target=batch_exporter.run)
    batch_exporter.expect_run()
    thread.start()
    for number in range(500):
        batch_exporter.record([make_sample(number)] * 16)
        assert wait_until_sent(batch_exporter, 60)
    batch_exporter.stop(60)
    thread.join()
    counters = batch_exporter.counters()
    assert sizes[:300].count(1) < 100, "most of what is refused is refused at once"
    assert counters.delivered > 100 * 16
    assert counters.delivered + counters.rejected == counters.recorded == 500 * 16
