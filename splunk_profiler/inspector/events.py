"""Events and counters of the host agent, for the command line and for tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from splunk_profiler.inspector.code_locations import CodeLocation
from splunk_profiler.inspector.messages import LossReason, Registration
from splunk_profiler.inspector.model import ProcessStorage, Reason


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a thread that worked for a transaction: a correlation message without its count.

    The ids are hexadecimal, of 32 and 16 digits. The location stands for the stack trace.
    """

    trace_id: str
    transaction_id: str
    location: CodeLocation


@dataclass(frozen=True, slots=True)
class Followed:
    """The start of sampling, or a change of the storage; `reasons` name what is still lost."""

    pid: int
    command: str
    storage: ProcessStorage
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class NotReady:
    """A process with nothing to sample yet, for blocking `reasons`; it is read again later."""

    pid: int
    command: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration that was sent or lost; the next refresh repeats a lost one.

    Attributes:
        socket_path: path as the process names it.
        loss: reason why it did not arrive; None if it did.
    """

    pid: int
    socket_path: str
    registration: Registration
    loss: LossReason | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A correlation message that was sent or lost.

    Attributes:
        socket_path: path as the process names it; a forked child first names its parent's.
        count: number of samples that the message stands for.
        loss: reason why it did not arrive; None if it did.
    """

    pid: int
    socket_path: str
    sample: Sample
    count: int
    loss: LossReason | None


@dataclass(frozen=True, slots=True)
class _Explained:
    pid: int
    text: str


class Busy(_Explained):
    """The first failure to sample a process since another tracer holds its threads."""


class Skipped(_Explained):
    """A process that is skipped, for the reason `text`, until it executes another program."""


class Ended(_Explained):
    """The end of following a process, usually by the end of the process; `text` is the reason."""


Event = Followed | NotReady | Registered | Reported | Busy | Skipped | Ended


@dataclass(slots=True)
class Totals:
    """Counters over all processes.

    Attributes:
        processes: processes followed; one that changes its storage counts once.
        given_up: followed processes given up for another reason than their end.
        messages: correlation messages sent.
        samples: sum of the counts in those messages.
        lost_samples: sum of the counts in `lost_messages`.
        busy_reads: reads that failed because another tracer held a thread.
        missed: sampling deadlines missed because earlier work took too long.
    """

    processes: int = 0
    given_up: int = 0
    messages: int = 0
    samples: int = 0
    lost_messages: Counter[LossReason] = field(default_factory=Counter)
    lost_samples: Counter[LossReason] = field(default_factory=Counter)
    registrations: int = 0
    lost_registrations: int = 0
    busy_reads: int = 0
    missed: int = 0
