"""The bounds, batches, retries and end of the queue, on a clock that only the test moves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from scripted_sink import SECOND_NS, Enough, ScriptedSink, samples

from splunk_profiler.model import RecordCounters
from splunk_profiler.pipeline import batch_exporter as batch_exporter_module
from splunk_profiler.pipeline.batch_exporter import BatchExporter, QueueLimits
from splunk_profiler.pipeline.delivery_log import LastResults
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Sample
from splunk_profiler.system.threads import WakeEvent

DELIVERED = ExportResult(ExportStatus.DELIVERED)
RETRY = ExportResult(ExportStatus.RETRY, "nobody there")


class Clock(WakeEvent):
    """A clock that jumps to the end of every wait; nothing really waits.

    Attributes:
        now_ns: the time.
        waits: how long each wait was to take, in seconds.
        at_wait: called before each wait with its number, from 1; returns True to wake the waiter at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 5 * SECOND_NS
        self.waits: list[float] = []
        self.at_wait: Callable[[int], bool] = lambda _: False

    def set(self) -> None:
        """Do nothing, as no thread waits."""

    def wait(self, timeout_s: float) -> bool:
        """Let the whole of `timeout_s` pass."""
        self.waits.append(timeout_s)
        if self.at_wait(len(self.waits)):
            return True
        self.now_ns += max(int(timeout_s * SECOND_NS), 1)
        return False


def make(sink: ScriptedSink, clock: Clock, **bounds: int) -> BatchExporter[Sample]:
    return BatchExporter(
        sink,
        export_interval_ns=SECOND_NS,
        size_of=lambda _: 100,
        limits=QueueLimits(**bounds),
        monotonic_ns=lambda: clock.now_ns,
        jitter=lambda: 1.0,
        wake=clock,
    )


def run(batch_exporter: BatchExporter[Sample]) -> None:
    with pytest.raises(Enough):
        batch_exporter.run()


def run_until_idle(batch_exporter: BatchExporter[Sample], clock: Clock) -> None:
    def stop_when_idle(_: int) -> bool:
        if batch_exporter.counters().waiting == 0:
            raise Enough
        return False

    clock.at_wait = stop_when_idle
    run(batch_exporter)


def test_pauses_take_no_random_number_from_the_application() -> None:
    clock = Clock()
    exporter: BatchExporter[Sample] = BatchExporter(
        ScriptedSink(RETRY, RETRY, DELIVERED), export_interval_ns=1, size_of=lambda _: 100, wake=clock
    )
    random.seed(7)
    expected = random.random()
    random.seed(7)
    exporter.record(samples(1, 1))
    run_until_idle(exporter, clock)
    assert exporter.counters().delivered == 1
    assert random.random() == expected


def test_samples_are_gathered_for_the_interval_and_sent_oldest_first() -> None:
    sink, clock = ScriptedSink(DELIVERED, DELIVERED), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(0, 0))

    def more(wait: int) -> bool:
        if wait == 1:
            batch_exporter.record(samples(1, 2))
            return True
        if wait == 2:
            batch_exporter.record(samples(3, 3))
            return True
        if wait == 4:
            raise Enough
        return False

    clock.at_wait = more
    run(batch_exporter)
    assert sink.batches == [[0], [1, 2, 3]]  # the first one goes at once
    assert clock.waits[1:3] == [1.0, 1.0]  # later records did not prolong the wait
    assert batch_exporter.counters() == RecordCounters(recorded=4, delivered=4)


def test_a_full_batch_goes_out_at_once() -> None:
    sink, clock = ScriptedSink(DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_bytes=300)
    batch_exporter.record(samples(1, 7))
    sink.script.append(DELIVERED)
    run(batch_exporter)
    assert sink.batches == [[1, 2, 3], [4, 5, 6]]
    assert clock.waits == [1.0]  # only for the one that was left


def test_batches_are_capped_by_records_too() -> None:
    sink, clock = ScriptedSink(DELIVERED, DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_records=2)
    batch_exporter.record(samples(1, 4))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1, 2], [3, 4]]


def test_one_record_larger_than_a_batch_still_goes_out() -> None:
    sink, clock = ScriptedSink(DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_bytes=50)
    batch_exporter.record(samples(1, 1))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1]]


@pytest.mark.parametrize("max_bytes", [500, 1500])
def test_a_full_queue_drops_the_oldest_and_counts_them(max_bytes: int) -> None:
    sink, clock = ScriptedSink(DELIVERED), Clock()
    batch_exporter = make(sink, clock, max_bytes=max_bytes)
    batch_exporter.set_max_bytes(500)
    batch_exporter.record(samples(1, 12))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[8, 9, 10, 11, 12]]
    assert batch_exporter.counters() == RecordCounters(recorded=12, delivered=5, queue_full=7)


def test_a_batch_that_is_to_be_retried_counts_within_the_bound() -> None:
    sink, clock = ScriptedSink(RETRY, DELIVERED), Clock()
    batch_exporter = make(sink, clock, max_bytes=400)
    batch_exporter.record(samples(1, 3))

    def more(wait: int) -> bool:
        if wait == 2:  # the pause before the retry
            batch_exporter.record(samples(4, 6))
        elif batch_exporter.counters().waiting == 0:
            raise Enough
        return False

    clock.at_wait = more
    run(batch_exporter)
    assert sink.batches == [[1, 2, 3], [3, 4, 5, 6]]
    assert batch_exporter.counters() == RecordCounters(recorded=6, delivered=4, queue_full=2)


def test_retries_back_off_to_four_seconds() -> None:
    sink, clock = ScriptedSink(*[RETRY] * 8), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run(batch_exporter)
    assert clock.waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    assert sink.batches == [[1]] * 8


def test_success_resets_the_backoff() -> None:
    sink, clock = ScriptedSink(RETRY, RETRY, DELIVERED, RETRY), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 2))
    run(batch_exporter)
    assert clock.waits == [0.5, 1.0, 0.5]


class ForkingSink(ScriptedSink):
    """A sink whose first exports are interrupted, each by a fork on another thread."""

    def __init__(self, forks: int, *script: ExportResult) -> None:
        super().__init__(*script)
        self._forks_left = forks
        self._interrupted = threading.Event()
        self.batch_exporter: BatchExporter[Sample] | None = None

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """Wait for the interruption, or return the next result of the script."""
        if not self._forks_left:
            return super().export(batch)
        self._forks_left -= 1
        self._interrupted.clear()
        threading.Thread(target=self._fork).start()
        self._interrupted.wait()
        return ExportResult(ExportStatus.RETRY, "interrupted")

    def interrupt(self) -> None:
        """End the export."""
        self._interrupted.set()

    def _fork(self) -> None:
        assert self.batch_exporter is not None
        self.batch_exporter.hold_for_fork(0.02)
        self.batch_exporter.release_after_fork()


def test_exports_that_forks_interrupt_are_no_failures_of_the_receiver(caplog: pytest.LogCaptureFixture) -> None:
    sink, clock = ForkingSink(4, RETRY, RETRY, DELIVERED), Clock()
    batch_exporter = sink.batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run_until_idle(batch_exporter, clock)
    assert clock.waits[:-1] == [*[0.5] * 5, 1.0]  # of two failures the second is longer
    assert batch_exporter.counters() == RecordCounters(recorded=1, delivered=1)
    (line,) = caplog.messages
    assert "are not delivered: nobody there" in line


def test_exports_that_are_always_interrupted_count_as_failures(caplog: pytest.LogCaptureFixture) -> None:
    sink, clock = ForkingSink(16 + 4, DELIVERED), Clock()
    batch_exporter = sink.batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run_until_idle(batch_exporter, clock)
    assert clock.waits[:-1] == [0.5] * 16 + [0.5, 1.0, 2.0, 4.0]
    assert batch_exporter.last_results().failure == "interrupted"
    (line,) = caplog.messages
    assert "are not delivered: interrupted" in line


class SlowSink(ForkingSink):
    """A sink that then takes a batch if the next fork leaves it the time."""

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """Take the batch unless it is interrupted meanwhile."""
        if self._forks_left:
            return super().export(batch)
        self._interrupted.clear()
        threading.Thread(target=self._fork).start()
        if self._interrupted.wait(0.2):
            raise Enough
        return super().export(batch)


def test_fork_waits_for_an_export_that_forks_have_interrupted_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_exporter_module, "MAX_PATIENT_FORK_S", 60.0)
    sink, clock = SlowSink(16, DELIVERED), Clock()
    batch_exporter = sink.batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run_until_idle(batch_exporter, clock)
    assert clock.waits[:-1] == [0.5] * 16
    assert batch_exporter.counters() == RecordCounters(recorded=1, delivered=1)


@pytest.mark.parametrize(("wish_ns", "pause_s"), [(2 * SECOND_NS, 2.0), (600 * SECOND_NS, 4.0)])
def test_the_receivers_wish_for_a_pause_is_granted_within_the_longest_one(wish_ns: int, pause_s: float) -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.RETRY, "busy", retry_after_ns=wish_ns)), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run(batch_exporter)
    assert clock.waits == [pause_s]


@pytest.mark.parametrize("wish_ns", [0, -SECOND_NS, SECOND_NS // 10])
def test_receiver_that_asks_for_a_short_pause_gets_the_usual_one(wish_ns: int) -> None:
    sink, clock = ScriptedSink(*[ExportResult(ExportStatus.RETRY, "busy", retry_after_ns=wish_ns)] * 3), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run(batch_exporter)
    assert clock.waits == [0.5, 1.0, 2.0]


def test_a_rejected_batch_is_dropped_and_counted_and_the_next_one_is_tried() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.REJECTED, "no"), DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_records=2)
    batch_exporter.record(samples(1, 4))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1, 2], [3, 4]]
    assert batch_exporter.counters() == RecordCounters(recorded=4, delivered=2, rejected=2)


def test_records_that_a_receiver_rejects_out_of_a_batch_are_counted() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.DELIVERED, "too old", rejected=2)), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 5))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == RecordCounters(recorded=5, delivered=3, rejected=2)


def test_receiver_that_refuses_every_record_has_not_delivered() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.DELIVERED, "over quota", rejected=2)), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 2))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.last_results() == LastResults(None, clock.now_ns, "over quota")


def test_profile_with_several_rejected_parts_counts_as_one_rejected() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.DELIVERED, "too old", rejected=5)), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 1))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == RecordCounters(recorded=1, rejected=1)


def test_too_large_batch_is_split_and_only_the_too_large_record_is_lost() -> None:
    too_large = ExportResult(ExportStatus.TOO_LARGE, "larger than max")
    sink, clock = ScriptedSink(too_large, too_large, too_large, *[DELIVERED] * 3), Clock()
    batch_exporter = make(sink, clock, batch_records=4)
    batch_exporter.record(samples(1, 4))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1, 2, 3, 4], [1, 2], [1], [2], [3, 4]]
    assert batch_exporter.counters() == RecordCounters(recorded=4, delivered=3, rejected=1)


class LimitedSink(ScriptedSink):
    """One of a receiver that takes 31 records at most."""

    def export(self, batch: Batch[Sample]) -> ExportResult:
        super().export(batch)
        return ExportResult(ExportStatus.TOO_LARGE, "larger than max") if len(batch.records) > 31 else DELIVERED


def test_receiver_with_a_limit_is_seldom_asked_for_more() -> None:
    sink, clock = LimitedSink(*[DELIVERED] * 1000), Clock()
    batch_exporter = make(sink, clock, batch_records=64)
    batch_exporter.record(samples(1, 2000))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == RecordCounters(recorded=2000, delivered=2000)
    assert len([batch for batch in sink.batches if len(batch) > 31]) < 10


def test_an_exception_in_the_sink_is_survived_and_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    sink, clock = ScriptedSink(*[ZeroDivisionError("x")] * 4, DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 3))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1], [1], [2], [2], [3]]
    assert batch_exporter.counters() == RecordCounters(recorded=3, delivered=1, rejected=2)
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert "the records cannot be encoded or sent: ZeroDivisionError: x" in caplog.text


def test_an_error_at_the_end_loses_no_other_batch() -> None:
    sink, clock = ScriptedSink(*[ZeroDivisionError("x")] * 2, *[DELIVERED] * 3), Clock()
    batch_exporter = make(sink, clock, batch_records=4)
    batch_exporter.record(samples(1, 16))
    batch_exporter.stop(0)
    assert batch_exporter.counters().lost_at_exit == 16  # no thread exports yet
    batch_exporter.record(samples(1, 16))
    batch_exporter.run()
    assert sink.batches == [[1, 2, 3, 4]] * 2 + [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    assert batch_exporter.counters().delivered == 12


def test_errors_with_an_answer_in_between_are_not_repeated_ones() -> None:
    sink, clock = ScriptedSink(MemoryError(), RETRY, MemoryError(), DELIVERED), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 2))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == RecordCounters(recorded=2, delivered=2)


def test_an_error_that_passes_loses_nothing() -> None:
    sink, clock = ScriptedSink(MemoryError(), DELIVERED, MemoryError(), DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_records=2)
    batch_exporter.record(samples(1, 4))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert batch_exporter.counters() == RecordCounters(recorded=4, delivered=4)
