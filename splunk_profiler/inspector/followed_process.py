"""A followed process: its state, its registration, its samples and its messages.

Runs on the thread that made it, because the kernel ties stopped threads to their tracer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splunk_profiler.inspector.code_locations import UNKNOWN_LOCATION, CodeLocation, CodeMap
from splunk_profiler.inspector.errors import AlreadyTracedError
from splunk_profiler.inspector.events import Busy, Event, Followed, NotReady, Registered, Reported, Sample, Totals
from splunk_profiler.inspector.messages import (
    DatagramSender,
    LossReason,
    Registration,
    encode_correlation,
    encode_registration,
    split_count,
)
from splunk_profiler.inspector.model import Interface, Level, ProcessStorage, ThreadReading
from splunk_profiler.inspector.reader import Reader

EventSink = Callable[[Event], None]

_MAX_PENDING_SAMPLES = 4096
"""Largest number of different samples that are gathered; to gather more would save few messages."""

_DEFAULT_DELAY_MS = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a host agent.

    Attributes:
        period_s: seconds between two samples.
        report_period_s: seconds between reports of gathered samples; None sends each sample at once.
        samples_delay_ms: delay that the registration promises; None promises the real one.
        duration_s: seconds to run; None means until it is stopped.
        off_cpu: also sample threads that sleep.
        children: also follow processes that the given ones fork.
        host_id: ``host.id`` of the registration; None omits it.
        registration_minor: minor version of the registration.
    """

    period_s: float
    report_period_s: float | None = None
    samples_delay_ms: int | None = None
    duration_s: float | None = None
    off_cpu: bool = False
    children: bool = False
    send_registrations: bool = True
    host_id: str | None = None
    registration_minor: int = 1

    @property
    def is_batched(self) -> bool:
        """True if equal samples are gathered until `FollowedProcess.report`; otherwise each is sent at once."""
        return self.report_period_s is not None

    def registration(self) -> Registration | None:
        """Return the registration to send to each process; None if none is sent."""
        delay_ms = self.samples_delay_ms
        if delay_ms is None:
            # A sample is sent at once, or at the end of the report period.
            delay_ms = _DEFAULT_DELAY_MS + math.ceil(1000 * (self.report_period_s or 0.0))
        return Registration(delay_ms, self.host_id, self.registration_minor) if self.send_registrations else None


class FollowedProcess:
    """A process that the agent refreshes, registers with, samples and reports to.

    Attributes:
        reader: what reads the process; the owner closes it.
        is_counted: True if the process ever had a storage; the totals then include it.

    Raises:
        InspectorError: from the constructor and from every read; the process has ended, or cannot be read.
    """

    def __init__(
        self, pid: int, settings: Settings, datagram_sender: DatagramSender, totals: Totals, on_event: EventSink
    ) -> None:
        self.pid = pid
        self._settings = settings
        self._registration = settings.registration()
        self._sender = datagram_sender
        self._totals = totals
        self._on_event = on_event
        self._storage: ProcessStorage | None = None
        self._socket_address = ""
        self._pending_samples: Counter[Sample] = Counter()
        self._code_map: CodeMap | None = None
        self.is_counted = self._is_registered = self._is_busy = False
        self._blocking_codes: frozenset[str] | None = None
        self.reader = Reader(pid, strict_host=True, interfaces=(Interface.ELASTIC,))
        self._apply_refresh()

    def refresh(self) -> None:
        """Read again what the process publishes. Real host profilers read it only once."""
        self.reader.refresh()
        self._code_map = None
        self._apply_refresh()

    def sample(self) -> None:
        """Sample every thread that works for a transaction; send once all threads run again."""
        if self._storage is None:
            if self.reader.has_storage_moved():
                self.refresh()
            return
        try:
            readings = self.reader.sample(running=not self._settings.off_cpu, code=True)
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
            if self.reader.has_storage_moved():
                self.refresh()
        finally:
            for sample in samples:
                if self._settings.is_batched and self._storage is not None:
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

    def _apply_refresh(self) -> None:
        """Apply the reader's last refresh: report to the old socket, emit events, register."""
        storage, reasons = self.reader.storage, self.reader.reasons()
        if storage != self._storage:
            self.report()  # to the socket at the time of the samples
            self._storage = storage
            self._socket_address = f"{self.reader.root}{storage.socket_path}" if storage is not None else ""
            self._is_registered = False
            if storage is not None:
                self._blocking_codes = None
                self._totals.processes += not self.is_counted
                self.is_counted = True
                self._on_event(Followed(self.pid, self.reader.command, storage, reasons))
        if storage is None:
            blocking = tuple(reason for reason in reasons if reason.level is Level.BLOCKS)
            codes = frozenset(reason.code for reason in blocking)
            if codes != self._blocking_codes:
                self._blocking_codes = codes
                self._on_event(NotReady(self.pid, self.reader.command, blocking))
        elif not self._is_registered and self._registration is not None:
            self._register(storage.socket_path, self._registration)

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
            self._code_map = CodeMap(self.reader.mappings())  # the process has loaded code since
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
