"""A followed process: its state, its registration, its samples and its messages.

Runs on the thread that made it, because the kernel ties stopped threads to their tracer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splunk_profiler.inspector.code_locations import UNKNOWN_LOCATION, CodeLocation, CodeMap
from splunk_profiler.inspector.datagram_sender import DatagramSender, LossReason
from splunk_profiler.inspector.errors import AlreadyTracedError
from splunk_profiler.inspector.events import Busy, Event, Followed, Registered, Reported, Sample, Totals, Unseen
from splunk_profiler.inspector.messages import Registration, encode_correlation, encode_registration, split_count
from splunk_profiler.inspector.model import Interface, Level, ProcessStorage, ThreadReading
from splunk_profiler.inspector.reader import Reader

EventSink = Callable[[Event], None]

_MAX_PENDING_SAMPLES = 4096
"""Largest number of different samples that are gathered; to gather more would save few messages."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The options for following a process.

    Attributes:
        off_cpu: also sample threads that sleep.
        registration: first message; None sends none, as upstream's profiler does.
        is_batched: gather equal samples until `FollowedProcess.report`; otherwise send each one at once.
    """

    off_cpu: bool
    registration: Registration | None
    is_batched: bool


class FollowedProcess:
    """A process that the agent refreshes, registers with, samples and reports to.

    Attributes:
        is_counted: True if the process ever had a storage; the totals then include it.

    Raises:
        InspectorError: the process cannot be read (see `errors`).
    """

    def __init__(
        self, pid: int, options: FollowOptions, datagram_sender: DatagramSender, totals: Totals, on_event: EventSink
    ) -> None:
        self.pid = pid
        self._options = options
        self._sender = datagram_sender
        self._totals = totals
        self._on_event = on_event
        self._storage: ProcessStorage | None = None
        self._socket_address = ""
        self._pending_samples: Counter[Sample] = Counter()
        self._code_map: CodeMap | None = None
        self.is_counted = self._is_registered = self._is_busy = False
        self._blocking_codes: frozenset[str] | None = None
        self._reader = Reader(pid, strict_host=True, interfaces=(Interface.ELASTIC,))
        self._apply_refresh()

    def refresh(self) -> None:
        """Read again what the process publishes. Real host profilers read it only once.

        Raises:
            InspectorError: the process has ended, or may not be read any more.
        """
        self._reader.refresh()
        self._code_map = None
        self._apply_refresh()

    def sample(self) -> None:
        """Sample every thread that works for a transaction; send once all threads run again.

        Raises:
            InspectorError: the process has ended, or may not be read any more.
        """
        if self._storage is None:
            if self._reader.has_storage_moved():
                self.refresh()
            return
        try:
            readings = self._reader.sample(running=not self._options.off_cpu, code=True)
        except AlreadyTracedError as error:
            self._totals.busy_reads += 1
            if not self._is_busy:
                self._on_event(Busy(self.pid, str(error)))
            self._is_busy = True
            return
        self._is_busy = False
        samples = self._collect_samples(readings)
        try:
            # A forked child may have published its own storage meanwhile; its samples belong there.
            if self._reader.has_storage_moved():
                self.refresh()
        finally:
            for sample in samples:
                if self._options.is_batched and self._storage is not None:
                    self._pending_samples[sample] += 1
                else:
                    self._send(sample, 1)
        if len(self._pending_samples) >= _MAX_PENDING_SAMPLES:
            self.report()

    def report(self) -> None:
        """Send the gathered samples."""
        pending_samples, self._pending_samples = self._pending_samples, Counter()
        for sample, samples in pending_samples.items():
            for count in split_count(samples):
                self._send(sample, count)

    def detach_pending(self) -> bool:
        """Release threads that stopped late; return True if none are left."""
        return self._reader.detach_pending()

    def close(self) -> None:
        """Release what is held of the process."""
        self._reader.close()

    def _apply_refresh(self) -> None:
        """Apply the reader's last refresh: report to the old socket, emit events, register."""
        storage, reasons = self._reader.storage, self._reader.reasons()
        if storage != self._storage:
            self.report()  # to the socket at the time of the samples
            self._storage = storage
            self._socket_address = f"{self._reader.root}{storage.socket_path}" if storage is not None else ""
            self._is_registered = False
            if storage is not None:
                self._blocking_codes = None
                self._totals.processes += not self.is_counted
                self.is_counted = True
                self._on_event(Followed(self.pid, self._reader.command, storage, reasons))
        if storage is None:
            blocking = tuple(reason for reason in reasons if reason.level is Level.BLOCKS)
            codes = frozenset(reason.code for reason in blocking)
            if codes != self._blocking_codes:
                self._blocking_codes = codes
                self._on_event(Unseen(self.pid, self._reader.command, blocking))
        elif not self._is_registered and self._options.registration is not None:
            self._register(storage.socket_path, self._options.registration)

    def _register(self, socket_path: str, registration: Registration) -> None:
        loss = self._sender.send(self._socket_address, encode_registration(registration))
        self._is_registered = loss is None
        self._totals.registrations += loss is None
        self._totals.lost_registrations += loss is not None
        self._on_event(Registered(self.pid, socket_path, registration, loss))

    def _collect_samples(self, readings: Sequence[ThreadReading]) -> list[Sample]:
        samples = []
        for reading in readings:
            record, address = reading.correlation, reading.instruction_pointer
            if record is not None and record.is_usable and address is not None:
                samples.append(Sample(record.trace_id, record.transaction_id, self._locate(address)))
        return samples

    def _locate(self, address: int) -> CodeLocation:
        found = None if self._code_map is None else self._code_map.location(address)
        if found is None:
            self._code_map = CodeMap(self._reader.code())  # the process has loaded code since
            found = self._code_map.location(address)
        return found or UNKNOWN_LOCATION

    def _send(self, sample: Sample, count: int) -> None:
        loss: LossReason | None
        if self._storage is None:
            socket_path, loss = "", LossReason.UNPUBLISHED
        else:
            socket_path = self._storage.socket_path
            ids = sample.trace_id, sample.transaction_id, sample.location.stack_trace_id
            loss = self._sender.send(self._socket_address, encode_correlation(*ids, count))
        if loss is None:
            self._totals.messages += 1
            self._totals.samples += count
        else:
            self._totals.lost_messages[loss] += 1
            self._totals.lost_samples[loss] += count
        self._on_event(Reported(self.pid, socket_path, sample, count, loss))
