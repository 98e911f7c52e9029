"""Interplay of an export in flight, a stop and a fork; threads synchronize with the test."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest
from scripted_sink import ScriptedSink, samples, wait_until_sent

from splunk_profiler.model import RecordCounters
from splunk_profiler.pipeline import batch_exporter as batch_exporter_module
from splunk_profiler.pipeline.batch_exporter import BatchExporter, QueueLimits
from splunk_profiler.pipeline.record_memory import estimate_size
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Sample

DELIVERED = ExportResult(ExportStatus.DELIVERED)
RETRY = ExportResult(ExportStatus.RETRY, "nobody there")


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


def counters_at_end(blocking: Blocking, *answers: ExportResult) -> RecordCounters:
    """Give these answers to the exports that are left, stop, and return the numbers of records."""
    sink, batch_exporter, thread = blocking
    for answer in answers:
        sink.answers.put(answer)
    batch_exporter.stop(60)
    thread.join()
    return batch_exporter.counters()


def test_recording_does_not_wait_for_an_export_in_flight(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    batch_exporter.record(samples(2, 3))  # would never return if it waited
    assert batch_exporter.counters().waiting == 3
    for _ in range(3):
        sink.answers.put(DELIVERED)
    assert wait_until_sent(batch_exporter, 60)
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == RecordCounters(recorded=3, delivered=3)


def test_stop_sends_what_is_queued(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    for _ in range(5):
        sink.answers.put(DELIVERED)
    batch_exporter.record(samples(1, 5))
    thread.start()
    sink.begun.get()
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == RecordCounters(recorded=5, delivered=5)


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
    assert at_the_stop == batch_exporter.counters() == RecordCounters(recorded=3, lost_at_exit=3)


def test_stop_ends_an_export_that_hangs_and_counts_what_is_lost(
    blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    sink, batch_exporter, thread = blocking
    batch_exporter.record(samples(1, 3))
    thread.start()
    sink.begun.get()
    batch_exporter.stop(0.01)
    thread.join()  # hangs if the export was not ended
    assert batch_exporter.counters() == RecordCounters(recorded=3, lost_at_exit=3)
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
    assert batch_exporter.counters() == RecordCounters(recorded=2, lost_at_exit=2)
    assert sink.closed == 1


def test_fork_waits_for_the_export_in_flight_and_no_other_begins(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    sink.answers.put(DELIVERED)
    assert batch_exporter.hold_for_fork(60)
    batch_exporter.record(samples(2, 2))
    assert not wait_until_sent(batch_exporter, 0.01)
    assert sink.begun.empty()
    batch_exporter.release_after_fork()
    assert counters_at_end(blocking, DELIVERED) == RecordCounters(recorded=2, delivered=2)


def test_fork_interrupts_a_hanging_export_and_its_batch_is_sent_later(blocking: Blocking) -> None:
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    assert batch_exporter.hold_for_fork(2.0)
    batch_exporter.release_after_fork()
    sink.answers.put(DELIVERED)
    assert wait_until_sent(batch_exporter, 60)
    batch_exporter.stop(60)
    thread.join()
    assert batch_exporter.counters() == RecordCounters(recorded=1, delivered=1)


def test_fork_waits_for_the_end_of_an_interrupted_export(blocking: Blocking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_exporter_module, "MAX_PATIENT_FORK_S", 60.0)
    sink, batch_exporter, thread = blocking
    thread.start()
    batch_exporter.record(samples(1, 1))
    sink.begun.get()
    assert batch_exporter.hold_for_fork(0.0)
    batch_exporter.release_after_fork()
    assert counters_at_end(blocking, DELIVERED) == RecordCounters(recorded=1, delivered=1)


def test_no_export_begins_while_a_fork_waits_for_the_one_before(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch_exporter, thread = blocking
    monkeypatch.setattr(batch_exporter_module, "MAX_PATIENT_FORK_S", 60.0)
    monkeypatch.setattr(sink, "interrupt", lambda: sink.answers.put(DELIVERED))
    thread.start()
    batch_exporter.record(samples(1, 3))
    sink.begun.get()
    assert batch_exporter.hold_for_fork(0.0)
    assert sink.begun.empty()
    batch_exporter.release_after_fork()
    assert counters_at_end(blocking, DELIVERED, DELIVERED) == RecordCounters(recorded=3, delivered=3)


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
    assert not wait_until_sent(batch_exporter, 0.01)
    assert sink.begun.empty()
    batch_exporter.release_after_fork()
    sink.answers.put(DELIVERED)
    batch_exporter.stop(60)
    thread.join()
