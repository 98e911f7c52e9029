"""One process that is followed: seen or not, registered with, sampled, reported to.

Everything runs on the thread that made it (the kernel wants that of a tracer). Must not import anything of the package
but the inspector's own modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splunk_profiler.inspector.errors import AlreadyTracedError
from splunk_profiler.inspector.events import Busy, Event, Followed, Registered, Reported, Sample, Totals, Unseen
from splunk_profiler.inspector.messages import Registration, counts_for, encode_correlation, encode_registration
from splunk_profiler.inspector.model import Interface, Level, ProcessStorage, ThreadReading
from splunk_profiler.inspector.outbox import Loss, Outbox
from splunk_profiler.inspector.places import NOWHERE, CodeMap, CodePlace
from splunk_profiler.inspector.reader import Reader

Tell = Callable[[Event], None]

_MOST_WAITING = 4096
"""Different samples that are gathered at most; with more of them nothing is gained by waiting."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a process is followed.

    Attributes:
        off_cpu: take threads that sleep as well.
        registration: what to say first; None to say nothing, as upstream's profiler does.
        gathered: report when `FollowedProcess.report` is called, equal samples together; otherwise each one at once.
    """

    off_cpu: bool
    registration: Registration | None
    gathered: bool


class FollowedProcess:
    """Follows process `pid`.

    Attributes:
        pid: the process.
        counted: whether it was ever seen, and so is among the processes of the totals.

    Raises:
        InspectorError: what keeps it from being read (see `errors`).
    """

    def __init__(self, pid: int, manner: Manner, outbox: Outbox, totals: Totals, tell: Tell) -> None:
        self.pid = pid
        self._manner = manner
        self._outbox = outbox
        self._totals = totals
        self._tell = tell
        self._storage: ProcessStorage | None = None
        self._address = ""
        self._waiting: Counter[Sample] = Counter()
        self._code: CodeMap | None = None
        self.counted = self._registered = self._is_busy = False
        self._blocks: frozenset[str] | None = None
        self._reader = Reader(pid, strict_host=True, interfaces=(Interface.ELASTIC,))
        self._judge()

    def look(self) -> None:
        """Look again at what the process publishes, as real host profilers do not: they look once.

        Raises:
            InspectorError: it has ended, or may not be read any more.
        """
        self._reader.refresh()
        self._code = None
        self._judge()

    def sample(self) -> None:
        """Take a sample of every thread that is at work for a transaction. Messages go out after all threads go on.

        Raises:
            InspectorError: it has ended, or may not be read any more.
        """
        if self._storage is None:
            if self._reader.storage_moved():
                self.look()
            return
        try:
            readings = self._reader.sample(running=not self._manner.off_cpu, code=True)
        except AlreadyTracedError as error:
            self._totals.busy += 1
            if not self._is_busy:
                self._tell(Busy(self.pid, str(error)))
            self._is_busy = True
            return
        self._is_busy = False
        samples = self._samples(readings)
        try:
            # Between two looks a child of a fork goes on to a storage of its own: its samples belong there.
            if self._reader.storage_moved():
                self.look()
        finally:
            for sample in samples:
                if self._manner.gathered and self._storage is not None:
                    self._waiting[sample] += 1
                else:
                    self._send(sample, 1)
        if len(self._waiting) >= _MOST_WAITING:
            self.report()

    def report(self) -> None:
        """Send what was gathered."""
        waiting, self._waiting = self._waiting, Counter()
        for sample, samples in waiting.items():
            for count in counts_for(samples):
                self._send(sample, count)

    def settle(self) -> bool:
        """As `Reader.settle`."""
        return self._reader.settle()

    def close(self) -> None:
        """Let go of what is held of the process."""
        self._reader.close()

    def _judge(self) -> None:
        """Go by what the last look has found."""
        storage, reasons = self._reader.storage, self._reader.reasons()
        if storage != self._storage:
            self.report()  # to the socket that was there when the samples were taken
            self._storage = storage
            self._address = f"{self._reader.root}{storage.socket_path}" if storage is not None else ""
            self._registered = False
            if storage is not None:
                self._blocks = None
                self._totals.processes += not self.counted
                self.counted = True
                self._tell(Followed(self.pid, self._reader.command, storage, reasons))
        if storage is None:
            blocking = tuple(reason for reason in reasons if reason.level is Level.BLOCKS)
            codes = frozenset(reason.code for reason in blocking)
            if codes != self._blocks:
                self._blocks = codes
                self._tell(Unseen(self.pid, self._reader.command, blocking))
        elif not self._registered and self._manner.registration is not None:
            self._register(storage.socket_path, self._manner.registration)

    def _register(self, socket_path: str, registration: Registration) -> None:
        loss = self._outbox.send(self._address, encode_registration(registration))
        self._registered = loss is None
        self._totals.registrations += loss is None
        self._totals.lost_registrations += loss is not None
        self._tell(Registered(self.pid, socket_path, registration, loss))

    def _samples(self, readings: Sequence[ThreadReading]) -> list[Sample]:
        samples = []
        for reading in readings:
            record, address = reading.correlation, reading.instruction_pointer
            if record is not None and record.usable and address is not None:
                samples.append(Sample(record.trace_id, record.transaction_id, self._place(address)))
        return samples

    def _place(self, address: int) -> CodePlace:
        found = None if self._code is None else self._code.place(address)
        if found is None:
            self._code = CodeMap(self._reader.code())  # it has loaded code since
            found = self._code.place(address)
        return found or NOWHERE

    def _send(self, sample: Sample, count: int) -> None:
        loss: Loss | None
        if self._storage is None:
            socket_path, loss = "", Loss.UNPUBLISHED
        else:
            socket_path = self._storage.socket_path
            ids = sample.trace_id, sample.transaction_id, sample.place.stack_trace_id
            loss = self._outbox.send(self._address, encode_correlation(*ids, count))
        if loss is None:
            self._totals.messages += 1
            self._totals.samples += count
        else:
            self._totals.lost_messages[loss] += 1
            self._totals.lost_samples[loss] += count
        self._tell(Reported(self.pid, socket_path, sample, count, loss))
