"""The queue between sampling and export: bounded, never waited for by the sampler, drained by one thread.

`BatchExporter.record` runs on the sampling worker's thread, `BatchExporter.run` is the body of the exporting thread,
`stop`, `hold_for_fork` and `release_after_fork` run on whichever thread ends or forks the process. Knows
neither what a record looks like nor how it travels: imports the model, never OpenTelemetry or a format.
"""

from __future__ import annotations

import random
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic

from splunk_profiler.model import Batch, ExportResult, ExportStatus, Profile, Record, Sample, Sink
from splunk_profiler.pipeline.delivery_log import DeliveryLog
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import WakeEvent, real_lock

_MAX_WAIT_S = 3600.0
_INITIAL_BACKOFF_NS = 500_000_000
# A record must flow within 15 s of the collector's return: this, plus what an export may take (10 s).
_MAX_BACKOFF_NS = 4_000_000_000
_MAX_TOO_LARGE = 32  # one after the other; it takes 12 to find the one record or stack that is too large
_EXIT_GRACE_S = 0.3
_FAILURE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of all records so far.

    Attributes:
        recorded: taken into the queue.
        delivered: accepted by the receiver.
        queue_full: dropped, oldest first, because the queue was full.
        rejected: dropped because the receiver refused them for good.
        lost_at_exit: not delivered when the process ended.
        waiting: in the queue or on their way.
    """

    recorded: int = 0
    delivered: int = 0
    queue_full: int = 0
    rejected: int = 0
    lost_at_exit: int = 0
    waiting: int = 0

    @property
    def dropped(self) -> int:
        """Records that nobody will see."""
        return self.queue_full + self.rejected + self.lost_at_exit


def estimate_size(sample: Sample) -> int:
    """About the bytes of a record on the wire; never far below what its queued form takes in memory."""
    return 400 + 80 * len(sample.thread.stack.frames)


def split_record(record: Record) -> tuple[Record, ...]:
    """The halves of a profile, which together have every aggregate once; what cannot be divided as it is."""
    if not isinstance(record, Profile) or len(record.aggregates) < 2:
        return (record,)
    middle = len(record.aggregates) // 2
    first = replace(record, aggregates=record.aggregates[:middle])
    return first, replace(record, aggregates=record.aggregates[middle:], dropped_labels=0)


class BatchExporter(Generic[Record]):
    """Gathers records into batches and hands these to a sink, again and again while that is worth it.

    Args:
        sink: where batches go.
        export_interval_ns: how long records are gathered before they are sent.
        size_of: estimated bytes of one record.
        split: a record that is too large for the receiver → smaller ones that say the same; or it alone.
        max_records, max_bytes: bounds of what waits and travels together; beyond them the oldest go first.
        batch_records, batch_bytes: bounds of one batch (receivers accept 4 MiB by default).
        monotonic_ns: the clock.
        jitter: a number from 0 to 1 that spreads the retries of many processes.
        wake: what the exporting thread waits on.
    """

    def __init__(
        self,
        sink: Sink[Record],
        *,
        export_interval_ns: int,
        size_of: Callable[[Record], int],
        split: Callable[[Record], tuple[Record, ...]] = split_record,
        max_records: int = 8192,
        max_bytes: int = 8 << 20,
        batch_records: int = 2048,
        batch_bytes: int = 1 << 20,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        jitter: Callable[[], float] = random.random,
        wake: WakeEvent | None = None,
    ) -> None:
        self._sink = sink
        self._interval_ns = export_interval_ns
        self._max_records, self._max_bytes = max_records, max_bytes
        self._batch_records, self._batch_bytes = batch_records, batch_bytes
        self._size_of, self._split = size_of, split
        self._now_ns, self._jitter = monotonic_ns, jitter
        self._batch_limit = batch_records  # fewer while the receiver finds batches too large
        self._failures = 0
        self._too_large_count = 0  # of batches that were too large, one after the other
        self._guard = Guard("the exporting thread")
        self._delivery_log = DeliveryLog(monotonic_ns)

        self._lock = real_lock()  # guards what follows; held for a few instructions at a time
        self._queue: deque[tuple[Record, int]] = deque()
        self._queued_bytes = 0
        self._in_flight: Batch[Record] = Batch((), 0)
        self._counters = Counters()
        self._is_flushing = False
        self._is_closing = False
        self._is_shut_down = False  # no export any more
        self._is_running = False

        self._stuck_batch: Batch[Record] | None = None  # what was travelling when a fork waited in vain
        self._exporting = real_lock()  # held while the sink exports, and by a thread that forks
        self._forking_thread: int | None = None
        self._wake = wake or WakeEvent()
        self._drained = WakeEvent()

    def record(self, records: Iterable[Record]) -> None:
        """Queue `records`; returns at once, whatever becomes of the receiver."""
        sized = [(record, self._size_of(record)) for record in records]
        if not sized:
            return
        with self._lock:
            was_empty = not self._queue
            self._queue.extend(sized)
            self._queued_bytes += sum(size for _, size in sized)
            self._add_counts(recorded=len(sized))
            self._drop_oldest()
            wake = was_empty or self._is_batch_full()
        if wake:
            self._wake.set()

    def counters(self) -> Counters:
        """What became of all records so far."""
        with self._lock:
            return replace(self._counters, waiting=len(self._queue) + len(self._in_flight.records))

    def expect_run(self) -> None:
        """A thread that will come to `run` is about to start: a `stop` before it has come waits for it."""
        with self._lock:
            self._is_running = True

    def run(self) -> None:
        """Export until `stop`; the body of a thread."""
        with self._lock:
            self._is_running = True
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
            self._drained.set()

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued without gathering more. True if nothing waits any longer."""
        with self._lock:
            if not self._is_running:
                return not self._queue
            self._is_flushing = True
        self._wake.set()
        until = time.monotonic() + timeout_s
        while self._is_flushing and self._is_running and (left_s := until - time.monotonic()) > 0:
            self._drained.wait(left_s)
        return self.counters().waiting == 0

    def stop(self, timeout_s: float) -> None:
        """Send what is queued, then close the sink; returns within `timeout_s` + 0.3 s with no export in flight."""
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
            self._in_flight = Batch((), 0)
            self._queue.clear()
            self._queued_bytes = 0
            self._add_counts(lost_at_exit=lost)
        self._delivery_log.log_exit(lost)

    def hold_for_fork(self, timeout_s: float) -> bool:
        """Wait until no export is in flight and begin none until `release_after_fork`.

        Half of `timeout_s` seconds is for an export to end by itself. One that takes longer is interrupted, for which
        there is the other half, and sent again after the fork. True if none is in flight; False if the fork has to go
        on regardless.
        """
        in_flight = self._in_flight
        is_stuck = (
            in_flight is self._stuck_batch
        )  # no fork waits for it twice: on a dead file system it would be every fork
        held = self._exporting.acquire(timeout=0 if is_stuck else timeout_s / 2)
        if not held and not is_stuck:
            self._sink.interrupt()
            held = self._exporting.acquire(timeout=timeout_s / 2)
            self._stuck_batch = None if held else in_flight
        if held:
            self._forking_thread = get_ident()
        return held

    def release_after_fork(self) -> None:
        """Export again; does nothing on a thread that does not hold. For the parent: a child has a new one."""
        if self._forking_thread == get_ident():
            self._forking_thread = None
            self._exporting.release()

    def _export_once(self) -> bool:
        """Gather and export one batch; False when there is nothing left to do."""
        self._wait_for_batch()
        with self._lock:
            batch = self._take_batch()
            closing = self._is_closing
        if not batch.records:
            return not closing
        try:
            with self._exporting:
                result = self._sink.export(batch)
        except BaseException:
            self._handle_result(batch, ExportResult(ExportStatus.REJECTED, "the exporter failed"))
            raise
        self._handle_result(batch, result)
        if result.export_status is ExportStatus.RETRY:
            if closing or self._is_shut_down:
                return False  # one try from then on is what an ending process can spend on a receiver
            self._back_off(result.retry_after_ns)
        return True

    def _wait_for_batch(self) -> None:
        until: int | None = None
        while True:
            with self._lock:
                if self._is_flushing and not self._queue:
                    self._is_flushing = False
                    self._drained.set()
                if self._is_closing or self._is_flushing or self._is_batch_full():
                    return
                if until is None and self._queue:
                    until = self._now_ns() + self._interval_ns
            left_s = _MAX_WAIT_S if until is None else (until - self._now_ns()) / 1e9
            if left_s <= 0:
                return
            self._wake.wait(left_s)

    def _back_off(self, retry_after_ns: int | None) -> None:
        delay_ns = min(_INITIAL_BACKOFF_NS << min(self._failures - 1, 8), _MAX_BACKOFF_NS)
        if retry_after_ns is not None:
            delay_ns = min(max(retry_after_ns, 0), _MAX_BACKOFF_NS)
        until = self._now_ns() + int(delay_ns * (0.8 + 0.2 * self._jitter()))
        while not (self._is_closing or self._is_flushing) and (left_ns := until - self._now_ns()) > 0:
            self._wake.wait(left_ns / 1e9)

    def _take_batch(self) -> Batch[Record]:
        records: list[Record] = []
        total = 0
        while self._queue and len(records) < self._batch_limit:
            record, size = self._queue[0]
            if records and total + size > self._batch_bytes:
                break
            self._queue.popleft()
            records.append(record)
            total += size
        self._queued_bytes -= total
        self._in_flight = Batch(tuple(records), total)
        return self._in_flight

    def _handle_result(self, batch: Batch[Record], result: ExportResult) -> None:
        count = len(batch.records)
        export_status = result.export_status
        requeued = batch.records
        if export_status is ExportStatus.TOO_LARGE:
            requeued = self._split_batch(requeued)
            export_status = ExportStatus.RETRY if len(requeued) > 1 else ExportStatus.REJECTED
        elif export_status is ExportStatus.DELIVERED:
            self._batch_limit = min(self._batch_limit * 2, self._batch_records)
            self._too_large_count = 0
        with self._lock:
            if self._in_flight is not batch:  # `stop` has waited long enough, and has counted them as lost
                return
            self._in_flight = Batch((), 0)
            if export_status is ExportStatus.DELIVERED:
                refused = min(result.rejected, count)  # of a profile the receiver may have got several parts
                self._add_counts(delivered=count - refused, rejected=refused)
            elif export_status is ExportStatus.REJECTED:
                self._add_counts(rejected=count)
            else:
                sized = [(record, self._size_of(record)) for record in reversed(requeued)]
                self._queue.extendleft(sized)
                self._queued_bytes += sum(size for _, size in sized)
                self._add_counts(recorded=len(requeued) - count)
                self._drop_oldest()
                if result.export_status is ExportStatus.RETRY and self._is_flushing:
                    self._is_flushing = False
                    self._drained.set()
        self._failures = 0 if export_status is ExportStatus.DELIVERED else self._failures + 1
        if result.export_status is not ExportStatus.TOO_LARGE or export_status is ExportStatus.REJECTED:
            self._delivery_log.log_result(result, self.counters().waiting, self.counters().dropped)

    def _split_batch(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """What to send in smaller parts of a batch that was too large; nothing, or one record, if it is given up."""
        self._too_large_count = (self._too_large_count + 1) % (4 * _MAX_TOO_LARGE)
        if self._too_large_count >= _MAX_TOO_LARGE:  # however small it is: a proxy with a limit that nothing can meet
            self._batch_limit = self._batch_records
            return ()
        self._batch_limit = max(len(records) // 2, 1)
        return records if len(records) > 1 else self._split(records[0])

    def _drop_oldest(self) -> None:
        """Drop the oldest that wait until what waits and travels is within the bounds; never the newest."""
        dropped = 0
        while len(self._queue) > 1 and (
            len(self._queue) + len(self._in_flight.records) > self._max_records
            or self._queued_bytes + self._in_flight.size > self._max_bytes
        ):
            self._queued_bytes -= self._queue.popleft()[1]
            dropped += 1
        if dropped:
            self._add_counts(queue_full=dropped)

    def _is_batch_full(self) -> bool:
        return self._queued_bytes >= self._batch_bytes or len(self._queue) >= self._batch_limit

    def _add_counts(self, **more: int) -> None:
        counters = self._counters
        self._counters = replace(counters, **{name: getattr(counters, name) + value for name, value in more.items()})

    def _wait_for_exit(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self._is_running and (left_s := until - time.monotonic()) > 0:
            self._drained.wait(left_s)
