"""The bounds, batches, retries and end of the queue, on a clock that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest
from sample_factory import make_sample

from splunk_profiler.model import Batch, ExportResult, ExportStatus, Sample
from splunk_profiler.pipeline.batch_exporter import BatchExporter, Counters, QueueLimits, estimate_size
from splunk_profiler.system.threads import WakeEvent

SECOND_NS = 1_000_000_000
DELIVERED = ExportResult(ExportStatus.DELIVERED)
RETRY = ExportResult(ExportStatus.RETRY, "nobody there")


class Enough(BaseException):
    """The exception that ends `BatchExporter.run` in a test."""


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


class ScriptedSink:
    """A sink that returns the given results, then raises `Enough`."""

    def __init__(self, *script: ExportResult | Exception) -> None:
        self.script = list(script)
        self.batches: list[list[int]] = []
        self.closed = 0

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """Record the samples' times in seconds."""
        if not self.script:
            raise Enough
        self.batches.append([sample.time_ns // SECOND_NS for sample in batch.records])
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Do nothing: exports take no time."""

    def interrupt(self) -> None:
        """Do nothing: exports take no time."""

    def shutdown(self) -> None:
        """Count the calls."""
        self.closed += 1


def samples(first: int, last: int) -> list[Sample]:
    return [make_sample(number) for number in range(first, last + 1)]


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


def test_samples_are_gathered_for_the_export_interval_and_go_out_oldest_first() -> None:
    sink, clock = ScriptedSink(DELIVERED), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 2))

    def more(wait: int) -> bool:
        if wait == 1:
            batch_exporter.record(samples(3, 3))
            return True
        if wait == 3:
            raise Enough
        return False

    clock.at_wait = more
    run(batch_exporter)
    assert sink.batches == [[1, 2, 3]]
    assert clock.waits[:2] == [1.0, 1.0]  # later records did not prolong the wait
    assert batch_exporter.counters() == Counters(recorded=3, delivered=3)


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


@pytest.mark.parametrize("bounds", [{"max_records": 5}, {"max_bytes": 500}])
def test_a_full_queue_drops_the_oldest_and_counts_them(bounds: dict[str, int]) -> None:
    sink, clock = ScriptedSink(DELIVERED), Clock()
    batch_exporter = make(sink, clock, **bounds)
    batch_exporter.record(samples(1, 12))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[8, 9, 10, 11, 12]]
    assert batch_exporter.counters() == Counters(recorded=12, delivered=5, queue_full=7)


def test_a_batch_that_is_to_be_retried_counts_within_the_bound() -> None:
    sink, clock = ScriptedSink(RETRY, DELIVERED), Clock()
    batch_exporter = make(sink, clock, max_records=4)
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
    assert batch_exporter.counters() == Counters(recorded=6, delivered=4, queue_full=2)


def test_retries_back_off_to_four_seconds_so_that_records_flow_soon_after_a_return() -> None:
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


@pytest.mark.parametrize(("wish_ns", "pause_s"), [(2 * SECOND_NS, 2.0), (600 * SECOND_NS, 4.0)])
def test_the_receivers_wish_for_a_pause_is_granted_within_the_longest_one(wish_ns: int, pause_s: float) -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.RETRY, "busy", retry_after_ns=wish_ns)), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 1))
    run(batch_exporter)
    assert clock.waits == [pause_s]


def test_a_rejected_batch_is_dropped_and_counted_and_the_next_one_is_tried() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.REJECTED, "no"), DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_records=2)
    batch_exporter.record(samples(1, 4))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1, 2], [3, 4]]
    assert batch_exporter.counters() == Counters(recorded=4, delivered=2, rejected=2)


def test_records_that_a_receiver_rejects_out_of_a_batch_are_counted() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.DELIVERED, "too old", rejected=2)), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 5))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == Counters(recorded=5, delivered=3, rejected=2)


def test_a_profile_of_which_several_parts_are_rejected_is_one_that_is_rejected() -> None:
    sink, clock = ScriptedSink(ExportResult(ExportStatus.DELIVERED, "too old", rejected=5)), Clock()
    batch_exporter = make(sink, clock)
    batch_exporter.record(samples(1, 1))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == Counters(recorded=1, rejected=1)


def test_a_batch_that_is_too_large_goes_out_in_parts_and_only_the_record_that_is_too_large_is_lost() -> None:
    too_large = ExportResult(ExportStatus.TOO_LARGE, "larger than max")
    sink, clock = ScriptedSink(too_large, too_large, too_large, *[DELIVERED] * 3), Clock()
    batch_exporter = make(sink, clock, batch_records=4)
    batch_exporter.record(samples(1, 4))
    run_until_idle(batch_exporter, clock)
    assert sink.batches == [[1, 2, 3, 4], [1, 2], [1], [2], [3, 4]]
    assert batch_exporter.counters() == Counters(recorded=4, delivered=3, rejected=1)


def test_an_exception_in_the_sink_is_survived_and_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    sink, clock = ScriptedSink(ZeroDivisionError("x"), ZeroDivisionError("y"), DELIVERED), Clock()
    batch_exporter = make(sink, clock, batch_records=1)
    batch_exporter.record(samples(1, 3))
    run_until_idle(batch_exporter, clock)
    assert batch_exporter.counters() == Counters(recorded=3, delivered=1, rejected=2)
    assert len([record for record in caplog.records if record.exc_info]) == 1


class BlockingSink:
    """A sink whose exports wait for the test or an interruption."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[Batch[Sample]] = SimpleQueue()
        self.answers: SimpleQueue[ExportResult] = SimpleQueue()

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """Signal the test, then wait for it."""
        self.begun.put(batch)
        return self.answers.get()

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Do nothing, as the test ends exports."""

    def interrupt(self) -> None:
        """End the export."""
        self.answers.put(ExportResult(ExportStatus.RETRY, "interrupted"))

    def shutdown(self) -> None:
        """End the export."""
        self.interrupt()


@pytest.fixture
def blocking() -> tuple[BlockingSink, BatchExporter[Sample], threading.Thread]:
    sink = BlockingSink()
    batch_exporter = BatchExporter(
        sink, export_interval_ns=1, size_of=estimate_size, limits=QueueLimits(batch_records=1)
    )
    return sink, batch_exporter, threading.Thread(target=batch_exporter.run)


Blocking = tuple[BlockingSink, BatchExporter[Sample], threading.Thread]


def test_recording_does_not_wait_for_an_export_in_flight(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    batch_exporter.record(samples(2, 3))  # would never return if it waited
    assert batch_exporter.counters().waiting == 3
    for _ in range(3):
        sink.answers.put(DELIVERED)
    assert batch_exporter.flush(60)
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == Counters(recorded=3, delivered=3)


def test_stop_sends_what_is_queued(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    for _ in range(5):
        sink.answers.put(DELIVERED)
    batch_exporter.record(samples(1, 5))
    thread.start()
    sink.begun.get()
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == Counters(recorded=5, delivered=5)


def test_a_record_whose_export_outlives_the_stop_is_lost_and_nothing_else(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    sink.shutdown = lambda: None  # type: ignore[method-assign]  # a file system that does not answer
    batch_exporter.record(samples(1, 3))
    thread.start()
    sink.begun.get()
    batch_exporter.stop(0.01)
    at_the_stop = batch_exporter.counters()
    sink.answers.put(DELIVERED)
    thread.join()
    assert at_the_stop == batch_exporter.counters() == Counters(recorded=3, lost_at_exit=3)


def test_stop_ends_an_export_that_hangs_and_counts_what_is_lost(
    blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    sink, batch_exporter, thread = blocking
    batch_exporter.record(samples(1, 3))
    thread.start()
    sink.begun.get()
    batch_exporter.stop(0.01)
    thread.join()  # hangs if the export was not ended
    assert batch_exporter.counters() == Counters(recorded=3, lost_at_exit=3)
    assert "3 profiling records were not delivered before the process ended" in caplog.text


def test_stop_spends_one_try_on_a_receiver_that_does_not_answer() -> None:
    sink = ScriptedSink(RETRY, RETRY)
    batch_exporter = BatchExporter(
        sink, export_interval_ns=1, size_of=estimate_size, limits=QueueLimits(batch_records=1)
    )
    batch_exporter.record(samples(1, 3))
    batch_exporter.stop(0)  # before the thread has started
    batch_exporter.record(samples(4, 4))
    batch_exporter.run()
    assert sink.batches == [[4]]
    assert sink.closed == 1


def test_stop_without_a_running_thread_returns_and_counts() -> None:
    sink = ScriptedSink()
    batch_exporter = BatchExporter(sink, export_interval_ns=1, size_of=estimate_size)
    batch_exporter.record(samples(1, 2))
    batch_exporter.stop(60)
    assert batch_exporter.counters() == Counters(recorded=2, lost_at_exit=2)
    assert sink.closed == 1


def test_a_fork_waits_for_the_export_in_flight_and_none_begins_until_it_is_over(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    sink.answers.put(DELIVERED)
    assert batch_exporter.hold_for_fork(60)
    batch_exporter.record(samples(2, 2))
    assert not batch_exporter.flush(0.01)
    assert sink.begun.empty()
    batch_exporter.release_after_fork()
    sink.answers.put(DELIVERED)
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == Counters(recorded=2, delivered=2)


def test_a_fork_interrupts_an_export_that_hangs_and_its_batch_is_sent_afterwards(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    assert batch_exporter.hold_for_fork(0.01)
    batch_exporter.release_after_fork()
    sink.answers.put(DELIVERED)
    assert batch_exporter.flush(60) or batch_exporter.flush(60)  # the first call may see the interruption
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == Counters(recorded=1, delivered=1)


def test_only_the_first_fork_waits_for_an_export_that_cannot_be_ended(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch_exporter, thread = blocking
    monkeypatch.setattr(sink, "interrupt", lambda: None)
    thread.start()
    batch_exporter.record(samples(1, 2))
    sink.begun.get()
    assert not batch_exporter.hold_for_fork(0.01)
    assert not batch_exporter.hold_for_fork(3600)
    sink.answers.put(DELIVERED)
    sink.begun.get()
    sink.answers.put(DELIVERED)
    assert batch_exporter.hold_for_fork(60), "the next one ends in time"
    batch_exporter.release_after_fork()
    batch_exporter.stop(60)
    thread.join()


def test_releasing_what_another_thread_holds_does_nothing(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    assert batch_exporter.hold_for_fork(60)
    other = threading.Thread(target=batch_exporter.release_after_fork)
    other.start()
    other.join()
    batch_exporter.record(samples(1, 1))
    thread.start()
    assert not batch_exporter.flush(0.01)
    assert sink.begun.empty()
    batch_exporter.release_after_fork()
    sink.answers.put(DELIVERED)
    batch_exporter.stop(60)
    thread.join()
