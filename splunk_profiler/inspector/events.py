"""What the stand-in for a host profiler tells while it works: frozen values that the command line and tests consume.

Owns no thread. Must not import anything of the package but the inspector's own modules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from splunk_profiler.inspector.code_locations import CodeLocation
from splunk_profiler.inspector.datagram_sender import LossReason
from splunk_profiler.inspector.messages import Registration
from splunk_profiler.inspector.model import ProcessStorage, Reason


@dataclass(frozen=True, slots=True)
class Sample:
    """A thread that was at work for a transaction: all that a message says of it but the count.

    Attributes:
        trace_id: 32 hexadecimal digits.
        transaction_id: 16 hexadecimal digits.
        location: where in its code it was, which is all that stands for a stack trace here.
    """

    trace_id: str
    transaction_id: str
    location: CodeLocation


@dataclass(frozen=True, slots=True)
class Followed:
    """From now on the process is sampled; said again when it publishes another storage.

    Attributes:
        pid: the process.
        command: its name.
        storage: what it says of itself.
        reasons: why a host profiler loses something all the same.
    """

    pid: int
    command: str
    storage: ProcessStorage
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Unseen:
    """There is nothing to be sampled in the process now. It is looked at again.

    Attributes:
        pid: the process.
        command: its name.
        reasons: what blocks a host profiler.
    """

    pid: int
    command: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration was sent, or lost, which is tried again at the next look.

    Attributes:
        pid: the process.
        socket_path: as the process names it.
        registration: what was said.
        loss: why it did not arrive; None if it did.
    """

    pid: int
    socket_path: str
    registration: Registration
    loss: LossReason | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A correlation message was sent or lost.

    Attributes:
        pid: the process.
        socket_path: as the process names it; that of its parent while a child of a fork has not named its own.
        sample: what was reported.
        count: how many samples it stands for.
        loss: why it did not arrive; None if it did.
    """

    pid: int
    socket_path: str
    sample: Sample
    count: int
    loss: LossReason | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else holds threads of the process, so it cannot be sampled; said once until it can be again."""

    pid: int
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The process is not followed, its children are; `text` says why. Looked at again if it becomes another program."""

    pid: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is followed no longer, as a rule because it has ended; `text` says why."""

    pid: int
    text: str


Event = Followed | Unseen | Registered | Reported | Busy | Skipped | Ended


@dataclass(slots=True)
class Totals:
    """Everything that was done, of all processes.

    Attributes:
        processes: how many were followed; one that was followed anew counts once.
        given_up: of those, how many were given up for another reason than their end.
        messages: correlation messages sent, without registrations.
        samples: what they stand for: the sum of their counts.
        lost_messages: correlation messages that did not arrive, by reason.
        lost_samples: what those stand for, by reason.
        registrations: registrations sent.
        lost_registrations: registrations that did not arrive.
        busy_reads: reads that failed because somebody else held a thread.
        missed: sampling instants left out because the one before took too long.
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
