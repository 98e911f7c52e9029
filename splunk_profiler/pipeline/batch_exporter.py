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
from splunk_profiler.pipeline.delivery_log import DeliveryReport
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import Signal, real_lock

_IDLE_S = 3600.0
_FIRST_BACKOFF_NS = 500_000_000
# A record must flow within 15 s of the collector's return: this, plus what an export may take (10 s).
_LONGEST_BACKOFF_NS = 4_000_000_000
_MOST_REFUSALS = 32  # one after the other; it takes 12 to find the one record or stack that is too large
_LEAVE_S = 0.3
_AFTER_FAILURE_S = 1.0


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


def estimated_size(sample: Sample) -> int:
    """About the bytes of a record on the wire; never far below what its queued form takes in memory."""
    return 400 + 80 * len(sample.thread.stack.frames)


def parts_of(record: Record) -> tuple[Record, ...]:
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
        divide: a record that is too large for the receiver → smaller ones that say the same; or it alone.
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
        divide: Callable[[Record], tuple[Record, ...]] = parts_of,
        max_records: int = 8192,
        max_bytes: int = 8 << 20,
        batch_records: int = 2048,
        batch_bytes: int = 1 << 20,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        jitter: Callable[[], float] = random.random,
        wake: Signal | None = None,
    ) -> None:
        self._sink = sink
        self._interval_ns = export_interval_ns
        self._max_records, self._max_bytes = max_records, max_bytes
        self._batch_records, self._batch_bytes = batch_records, batch_bytes
        self._size_of, self._divide = size_of, divide
        self._now_ns, self._jitter = monotonic_ns, jitter
        self._part = batch_records  # fewer while the receiver finds batches too large
        self._failures = 0
        self._refusals = 0  # of batches that were too large, one after the other
        self._guard = Guard("the exporting thread")
        self._report = DeliveryReport(monotonic_ns)

        self._lock = real_lock()  # guards what follows; held for a few instructions at a time
        self._queue: deque[tuple[Record, int]] = deque()
        self._bytes = 0
        self._travelling: Batch[Record] = Batch((), 0)
        self._counters = Counters()
        self._flushing = False
        self._closing = False
        self._ended = False  # no export any more
        self._running = False

        self._stuck: Batch[Record] | None = None  # what was travelling when a fork waited in vain
        self._exporting = real_lock()  # held while the sink exports, and by a thread that forks
        self._forking: int | None = None
        self._wake = wake or Signal()
        self._drained = Signal()

    def record(self, records: Iterable[Record]) -> None:
        """Queue `records`; returns at once, whatever becomes of the receiver."""
        sized = [(record, self._size_of(record)) for record in records]
        if not sized:
            return
        with self._lock:
            was_empty = not self._queue
            self._queue.extend(sized)
            self._bytes += sum(size for _, size in sized)
            self._count(recorded=len(sized))
            self._trim()
            wake = was_empty or self._full()
        if wake:
            self._wake.set()

    def counters(self) -> Counters:
        """What became of all records so far."""
        with self._lock:
            return replace(self._counters, waiting=len(self._queue) + len(self._travelling.records))

    def expect_run(self) -> None:
        """A thread that will come to `run` is about to start: a `stop` before it has come waits for it."""
        with self._lock:
            self._running = True

    def run(self) -> None:
        """Export until `stop`; the body of a thread."""
        with self._lock:
            self._running = True
        try:
            while True:
                with self._guard.watching():
                    if not self._turn():
                        return
                    continue
                if self._closing:
                    return
                self._wake.wait(_AFTER_FAILURE_S)
        finally:
            with self._lock:
                self._running = False
            self._drained.set()

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued without gathering more. True if nothing waits any longer."""
        with self._lock:
            if not self._running:
                return not self._queue
            self._flushing = True
        self._wake.set()
        until = time.monotonic() + timeout_s
        while self._flushing and self._running and (left_s := until - time.monotonic()) > 0:
            self._drained.wait(left_s)
        return self.counters().waiting == 0

    def stop(self, timeout_s: float) -> None:
        """Send what is queued, then close the sink; returns within `timeout_s` + 0.3 s with no export in flight."""
        self._sink.hurry(timeout_s)
        with self._lock:
            self._closing = True
            running = self._running
        self._wake.set()
        if running:
            self._await_end(timeout_s)
        self._ended = True
        self._sink.shutdown()
        if running:
            self._await_end(_LEAVE_S)
        with self._lock:
            lost = len(self._queue) + len(self._travelling.records)
            self._travelling = Batch((), 0)
            self._queue.clear()
            self._bytes = 0
            self._count(lost_at_exit=lost)
        self._report.ended(lost)

    def hold_for_fork(self, timeout_s: float) -> bool:
        """Wait until no export is in flight and begin none until `release_after_fork`.

        Half of `timeout_s` seconds is for an export to end by itself. One that takes longer is interrupted, for which
        there is the other half, and sent again after the fork. True if none is in flight; False if the fork has to go
        on regardless.
        """
        travelling = self._travelling
        stuck = travelling is self._stuck  # no fork waits for it twice: on a dead file system it would be every fork
        held = self._exporting.acquire(timeout=0 if stuck else timeout_s / 2)
        if not held and not stuck:
            self._sink.interrupt()
            held = self._exporting.acquire(timeout=timeout_s / 2)
            self._stuck = None if held else travelling
        if held:
            self._forking = get_ident()
        return held

    def release_after_fork(self) -> None:
        """Export again; does nothing on a thread that does not hold. For the parent: a child has a new one."""
        if self._forking == get_ident():
            self._forking = None
            self._exporting.release()

    def _turn(self) -> bool:
        """Gather and export one batch; False when there is nothing left to do."""
        self._gather()
        with self._lock:
            batch = self._take()
            closing = self._closing
        if not batch.records:
            return not closing
        try:
            with self._exporting:
                outcome = self._sink.export(batch)
        except BaseException:
            self._settle(batch, ExportResult(ExportStatus.REJECTED, "the exporter failed"))
            raise
        self._settle(batch, outcome)
        if outcome.delivery is ExportStatus.RETRY:
            if closing or self._ended:
                return False  # one try from then on is what an ending process can spend on a receiver
            self._back_off(outcome.retry_after_ns)
        return True

    def _gather(self) -> None:
        until: int | None = None
        while True:
            with self._lock:
                if self._flushing and not self._queue:
                    self._flushing = False
                    self._drained.set()
                if self._closing or self._flushing or self._full():
                    return
                if until is None and self._queue:
                    until = self._now_ns() + self._interval_ns
            left_s = _IDLE_S if until is None else (until - self._now_ns()) / 1e9
            if left_s <= 0:
                return
            self._wake.wait(left_s)

    def _back_off(self, wanted_ns: int | None) -> None:
        delay_ns = min(_FIRST_BACKOFF_NS << min(self._failures - 1, 8), _LONGEST_BACKOFF_NS)
        if wanted_ns is not None:
            delay_ns = min(max(wanted_ns, 0), _LONGEST_BACKOFF_NS)
        until = self._now_ns() + int(delay_ns * (0.8 + 0.2 * self._jitter()))
        while not (self._closing or self._flushing) and (left_ns := until - self._now_ns()) > 0:
            self._wake.wait(left_ns / 1e9)

    def _take(self) -> Batch[Record]:
        records: list[Record] = []
        total = 0
        while self._queue and len(records) < self._part:
            record, size = self._queue[0]
            if records and total + size > self._batch_bytes:
                break
            self._queue.popleft()
            records.append(record)
            total += size
        self._bytes -= total
        self._travelling = Batch(tuple(records), total)
        return self._travelling

    def _settle(self, batch: Batch[Record], outcome: ExportResult) -> None:
        count = len(batch.records)
        delivery = outcome.delivery
        again = batch.records
        if delivery is ExportStatus.TOO_LARGE:
            again = self._smaller(again)
            delivery = ExportStatus.RETRY if len(again) > 1 else ExportStatus.REJECTED
        elif delivery is ExportStatus.DELIVERED:
            self._part = min(self._part * 2, self._batch_records)
            self._refusals = 0
        with self._lock:
            if self._travelling is not batch:  # `stop` has waited long enough, and has counted them as lost
                return
            self._travelling = Batch((), 0)
            if delivery is ExportStatus.DELIVERED:
                refused = min(outcome.rejected, count)  # of a profile the receiver may have got several parts
                self._count(delivered=count - refused, rejected=refused)
            elif delivery is ExportStatus.REJECTED:
                self._count(rejected=count)
            else:
                sized = [(record, self._size_of(record)) for record in reversed(again)]
                self._queue.extendleft(sized)
                self._bytes += sum(size for _, size in sized)
                self._count(recorded=len(again) - count)
                self._trim()
                if outcome.delivery is ExportStatus.RETRY and self._flushing:
                    self._flushing = False
                    self._drained.set()
        self._failures = 0 if delivery is ExportStatus.DELIVERED else self._failures + 1
        if outcome.delivery is not ExportStatus.TOO_LARGE or delivery is ExportStatus.REJECTED:
            self._report.settled(outcome, self.counters().waiting, self.counters().dropped)

    def _smaller(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """What to send in smaller parts of a batch that was too large; nothing, or one record, if it is given up."""
        self._refusals = (self._refusals + 1) % (4 * _MOST_REFUSALS)
        if self._refusals >= _MOST_REFUSALS:  # however small it is: a proxy with a limit that nothing can meet
            self._part = self._batch_records
            return ()
        self._part = max(len(records) // 2, 1)
        return records if len(records) > 1 else self._divide(records[0])

    def _trim(self) -> None:
        """Drop the oldest that wait until what waits and travels is within the bounds; never the newest."""
        dropped = 0
        while len(self._queue) > 1 and (
            len(self._queue) + len(self._travelling.records) > self._max_records
            or self._bytes + self._travelling.size > self._max_bytes
        ):
            self._bytes -= self._queue.popleft()[1]
            dropped += 1
        if dropped:
            self._count(queue_full=dropped)

    def _full(self) -> bool:
        return self._bytes >= self._batch_bytes or len(self._queue) >= self._part

    def _count(self, **more: int) -> None:
        counters = self._counters
        self._counters = replace(counters, **{name: getattr(counters, name) + value for name, value in more.items()})

    def _await_end(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self._running and (left_s := until - time.monotonic()) > 0:
            self._drained.wait(left_s)
