"""The bounded queue between sampling and export, and the loop that exports it.

The thread that feeds the pipeline calls `BatchExporter.record` and never waits. The exporting thread
runs `run`. The thread that ends or forks the process calls the other methods. Imports `model` and `samples`,
but neither OpenTelemetry nor a format.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import Generic, NamedTuple

from splunk_profiler.model import RecordCounters
from splunk_profiler.pipeline.delivery_log import DeliveryLog, LastResults, WarningLimit
from splunk_profiler.pipeline.record_memory import RecordMemory, SizedMemory
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Profile, Record, Sink
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard, is_interrupt
from splunk_profiler.system.threads import OwnedLock, WakeEvent, wait_until

_RANDOM = random.SystemRandom()  # the application may have seeded the other, and count on its numbers
_MAX_WAIT_S = 3600.0
_INITIAL_BACKOFF_NS = 500_000_000
# A record must flow within 15 s of the collector's return: this, plus what an export may take (10 s).
_MAX_BACKOFF_NS = 4_000_000_000
_STEADY_BATCHES = 64  # that are delivered before larger ones are tried again: each try is a request in vain
_MAX_TOO_LARGE = 32  # in a row; halving down to the one record or stack that is too large takes 12
_MAX_INTERRUPTIONS = 16  # in a row that are no failures; a receiver that answers soon takes a batch in between
# For the end of an interrupted export. And, once in so many interruptions, each with a pause after it, for one that is
# not interrupted yet: in 8 seconds at most once.
MAX_PATIENT_FORK_S = 0.25
_EXIT_GRACE_S = 0.3
_FAILURE_PAUSE_S = 1.0


class QueueLimits(NamedTuple):
    """The bounds of the queue and of one batch.

    Attributes:
        max_bytes: memory of the queue and the batch in flight together; beyond it the oldest records are dropped.
        batch_records: of one batch.
        batch_bytes: of one batch, as estimated on the wire (receivers accept 4 MiB by default).
    """

    max_bytes: int = 8 << 20
    batch_records: int = 2048
    batch_bytes: int = 1 << 20


class BatchExporter(Generic[Record]):
    """Gathers records into batches and exports these to a sink, with retries.

    Args:
        export_interval_ns: time for which records are gathered before an export, except the first one.
        size_of: returns the estimated bytes of a record on the wire.
        memory: counts the memory of queued records; by default, they take as much as on the wire.
        warning_limit: of what is logged of deliveries; by default, one of its own.
        jitter: returns a number from 0 to 1; spreads the retries of many processes.
        wake: the event that the exporting thread waits on.
    """

    def __init__(
        self,
        sink: Sink[Record],
        *,
        export_interval_ns: int,
        size_of: Callable[[Record], int],
        memory: RecordMemory[Record] | None = None,
        limits: QueueLimits | None = None,
        warning_limit: WarningLimit | None = None,
        monotonic_ns: Callable[[], int] = clocks.monotonic_ns,
        jitter: Callable[[], float] = _RANDOM.random,
        wake: WakeEvent | None = None,
    ) -> None:
        self._sink = sink
        self._interval_ns = export_interval_ns
        self._gather_ns = 0  # before the next export: the first records show at once that all works
        self._limits = limits or QueueLimits()
        self._max_bytes = self._limits.max_bytes
        self._size_of = size_of
        self._now_ns, self._jitter = monotonic_ns, jitter
        self._batch_limit = self._limits.batch_records  # lower while the receiver finds batches too large
        self._failures = 0
        self._too_large_count = 0  # batches in a row
        self._steady_batches = 0  # left until larger ones are tried
        self._interruption_count = 0  # exports in a row
        self._guard = Guard("the exporting thread")
        self._delivery_log = DeliveryLog(monotonic_ns, warning_limit)

        self._lock = OwnedLock()  # guards what follows; held for a few instructions at a time
        self._queue: deque[tuple[Record, int]] = deque()
        self._queued_bytes = 0  # on the wire
        self._memory = memory or SizedMemory(size_of)  # of the queue and the batch in flight
        self._in_flight: Batch[Record] = Batch(())
        self._counters = RecordCounters()
        self._is_closing = False
        self._is_shut_down = False
        self._is_running = False

        self._failed_record: Record | None = None  # the first of a batch whose export raised
        self._stuck_batch: Batch[Record] | None = None  # in flight when a fork gave up waiting
        self._exporting = OwnedLock()  # held during an export, and by a forking thread
        self._fork_deadline_s = 0.0  # until when no export begins, as a fork waits for the one before
        self._is_interrupted = False  # the export in flight, by a fork: that is seldom a failure of the receiver
        self._wake = wake or WakeEvent()
        self._ended = WakeEvent()

    def record(self, records: Iterable[Record]) -> None:
        """Queue `records`; returns at once, whatever state the receiver is in."""
        sized = [(record, self._size_of(record)) for record in records]
        if not sized:
            return
        with self._lock:
            was_empty = not self._queue
            self._queue.extend(sized)
            self._queued_bytes += sum(size for _, size in sized)
            self._memory.add(record for record, _ in sized)
            self._add_counts(recorded=len(sized))
            self._drop_oldest()
            wake = was_empty or self._is_batch_full()
        if wake:
            self._wake.set()

    def counters(self) -> RecordCounters:
        """Return the numbers of records since the start."""
        with self._lock:
            return self._counters._replace(waiting=len(self._queue) + len(self._in_flight.records))

    def last_results(self) -> LastResults:
        """Return the last results of exports."""
        return self._delivery_log.last_results

    def set_max_bytes(self, max_bytes: int) -> None:
        """Change the limit of the queue's memory, from the next record on."""
        self._max_bytes = max_bytes

    def expect_run(self) -> None:
        """Make `stop` wait for a thread that is about to start `run`."""
        with self._lock:
            self._is_running = True

    def run(self) -> None:
        """Export until `stop`; the body of the exporting thread."""
        self.expect_run()
        try:
            while True:
                with self._guard.catching():
                    if not self._export_once():
                        return
                    continue
                if self._is_closing:
                    return
                self._wake.wait(_FAILURE_PAUSE_S)
        finally:
            with self._lock:
                self._is_running = False
            self._ended.set()

    def stop(self, timeout_s: float) -> None:
        """Export the queue and close the sink; returns within `timeout_s` + 0.3 s with no export in flight."""
        self._sink.set_shutdown_deadline(timeout_s)
        with self._lock:
            self._is_closing = True
            running = self._is_running
        self._wake.set()
        if running:
            self._wait_for_exit(timeout_s)
        self._is_shut_down = True
        self._sink.shutdown()
        if running:
            self._wait_for_exit(_EXIT_GRACE_S)
        with self._lock:
            lost = len(self._queue) + len(self._in_flight.records)
            self._in_flight = Batch(())
            self._queue.clear()
            self._queued_bytes = 0
            self._add_counts(lost_at_exit=lost)
        self._delivery_log.log_exit(lost)

    def hold_for_fork(self, timeout_s: float) -> bool:
        """Wait until no export is in flight and start none until `release_after_fork`.

        An export has half of `timeout_s` to end by itself. Then it is interrupted, and is repeated after the fork. Its
        thread needs the GIL for that, and has a quarter of a second: gRPC may break in a child that is forked in the
        middle of a call. Returns False if it is still in flight then: the fork has to go on regardless.
        After 16 interruptions in a row the next fork waits longer, or forks that come often would let none end.
        """
        in_flight = self._in_flight
        if in_flight is self._stuck_batch:  # one fork waits for it, not every fork: the file system may be dead
            return self._exporting.acquire(0)
        has_starved = self._interruption_count > 0 and self._interruption_count % _MAX_INTERRUPTIONS == 0
        interrupted_end_s = max(timeout_s / 2, MAX_PATIENT_FORK_S)
        own_end_s = interrupted_end_s if has_starved else timeout_s / 2
        self._fork_deadline_s = clocks.monotonic() + own_end_s + interrupted_end_s
        held = self._exporting.acquire(own_end_s)
        if not held:
            self._is_interrupted = True
            self._sink.interrupt()
            held = self._exporting.acquire(interrupted_end_s)
            self._stuck_batch = None if held else in_flight
        if not held:
            self._fork_deadline_s = 0.0
        return held

    def release_after_fork(self) -> None:
        """Allow exports again in the parent; frees nothing on a thread without the hold."""
        self._fork_deadline_s = 0.0
        self._exporting.release()

    def _export_once(self) -> bool:
        """Gather and export one batch; return False when `run` has to end."""
        self._wait_for_batch()
        with self._lock:
            batch = self._take_batch()
            closing = self._is_closing
        if not batch.records:
            return not closing
        self._gather_ns = self._interval_ns
        try:
            # Between two exports the lock is free for microseconds, which a fork that looks now and then never sees.
            wait_until(lambda: clocks.monotonic() >= self._fork_deadline_s, inf)
            with self._exporting:
                self._is_interrupted = False
                result = self._sink.export(batch)
            self._failed_record = None
        except BaseException as error:
            result = self._result_of_error(batch, error)
            if is_interrupt(error):
                self._handle_result(batch, result)
                raise
            self._guard.count(error)
        self._handle_result(batch, result)
        if result.export_status is ExportStatus.RETRY:
            if closing or self._is_shut_down:
                # An ending process tries once, but an error is none of the receiver's: others may be sent.
                return closing and self._failed_record is not None
            self._back_off(result.retry_after_ns)
        return True

    def _result_of_error(self, batch: Batch[Record], error: BaseException) -> ExportResult:
        """Return what an export that raised comes to: tried once more, since an error such as of memory may pass."""
        first = batch.records[0]
        is_repeated = first is self._failed_record
        self._failed_record = None if is_repeated else first
        text = f"the records cannot be encoded or sent: {type(error).__name__}: {error}"
        return ExportResult(ExportStatus.REJECTED if is_repeated else ExportStatus.RETRY, text)

    def _wait_for_batch(self) -> None:
        until: int | None = None
        while True:
            with self._lock:
                if self._is_closing or self._is_batch_full():
                    return
                if until is None and self._queue:
                    until = self._now_ns() + self._gather_ns
            left_s = _MAX_WAIT_S if until is None else (until - self._now_ns()) / 1e9
            if left_s <= 0:
                return
            self._wake.wait(left_s)

    def _back_off(self, retry_after_ns: int | None) -> None:
        # The receiver may ask for a longer pause only: a proxy says 0, and each try encodes the batch anew.
        backoff_ns = max(_INITIAL_BACKOFF_NS << min(max(self._failures - 1, 0), 8), retry_after_ns or 0)
        delay_ns = min(backoff_ns, _MAX_BACKOFF_NS)
        until = self._now_ns() + int(delay_ns * (0.8 + 0.2 * self._jitter()))
        while not self._is_closing and (left_ns := until - self._now_ns()) > 0:
            self._wake.wait(left_ns / 1e9)

    def _take_batch(self) -> Batch[Record]:
        records: list[Record] = []
        total = 0
        while self._queue and len(records) < self._batch_limit:
            record, size = self._queue[0]
            if records and total + size > self._limits.batch_bytes:
                break
            self._queue.popleft()
            records.append(record)
            total += size
        self._queued_bytes -= total
        self._in_flight = Batch(tuple(records))
        return self._in_flight

    def _handle_result(self, batch: Batch[Record], result: ExportResult) -> None:
        count = len(batch.records)
        export_status = result.export_status
        requeued, delivered = batch.records, 0
        if export_status is ExportStatus.TOO_LARGE:
            requeued = self._shrink(requeued)
            export_status = ExportStatus.RETRY if len(requeued) > 1 else ExportStatus.REJECTED
        elif export_status is ExportStatus.DELIVERED:
            self._steady_batches = max(self._steady_batches - 1, 0)
            if not self._steady_batches:
                self._batch_limit = min(self._batch_limit * 2, self._limits.batch_records)
            self._too_large_count = 0
        with self._lock:
            if self._in_flight is not batch:  # `stop` gave up and counted them as lost
                return
            self._in_flight = Batch(())
            self._memory.remove(batch.records)
            if export_status is ExportStatus.DELIVERED:
                delivered = max(count - result.rejected, 0)  # a receiver may count the parts of a profile
                self._add_counts(delivered=delivered, rejected=count - delivered)
            elif export_status is ExportStatus.REJECTED:
                self._add_counts(rejected=count)
            else:
                sized = [(record, self._size_of(record)) for record in reversed(requeued)]
                self._queue.extendleft(sized)
                self._queued_bytes += sum(size for _, size in sized)
                self._memory.add(requeued)
                self._add_counts(recorded=len(requeued) - count)
                self._drop_oldest()
        is_interrupted = self._is_interrupted and result.export_status is ExportStatus.RETRY
        self._interruption_count = self._interruption_count + 1 if is_interrupted else 0
        if 0 < self._interruption_count <= _MAX_INTERRUPTIONS:
            return
        self._failures = 0 if export_status is ExportStatus.DELIVERED else self._failures + 1
        if result.export_status is not ExportStatus.TOO_LARGE or export_status is ExportStatus.REJECTED:
            self._delivery_log.log_result(result, delivered, self.counters().waiting, self.counters().dropped)

    def _shrink(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Return the records to send in smaller batches; none, or one, if this is hopeless."""
        self._too_large_count = (self._too_large_count + 1) % (4 * _MAX_TOO_LARGE)
        if self._too_large_count >= _MAX_TOO_LARGE:  # a proxy may have a limit below any record
            self._batch_limit = self._limits.batch_records
            return ()
        self._batch_limit = max(len(records) // 2, 1)
        self._steady_batches = _STEADY_BATCHES if len(records) > 1 else 0  # one record: others may fit
        return records if len(records) > 1 else _split_record(records[0])

    def _drop_oldest(self) -> None:
        """Drop the oldest queued records beyond the limit, but never the newest."""
        dropped = 0
        while len(self._queue) > 1 and self._memory.used_bytes > self._max_bytes:
            record, size = self._queue.popleft()
            self._queued_bytes -= size
            self._memory.remove((record,))
            dropped += 1
        if dropped:
            self._add_counts(queue_full=dropped)

    def _is_batch_full(self) -> bool:
        return self._queued_bytes >= self._limits.batch_bytes or len(self._queue) >= self._batch_limit

    def _add_counts(self, **more: int) -> None:
        counters = self._counters
        self._counters = counters._replace(**{name: getattr(counters, name) + value for name, value in more.items()})

    def _wait_for_exit(self, timeout_s: float) -> None:
        until = clocks.monotonic() + timeout_s
        while self._is_running and (left_s := until - clocks.monotonic()) > 0:
            self._ended.wait(left_s)


def _split_record(record: Record) -> tuple[Record, ...]:
    """Return the halves of a profile; a record that cannot be divided stays whole."""
    if not isinstance(record, Profile) or len(record.aggregates) < 2:
        return (record,)
    middle = len(record.aggregates) // 2
    first = replace(record, aggregates=record.aggregates[:middle])
    return first, replace(record, aggregates=record.aggregates[middle:], dropped_labels=0, comments=())
