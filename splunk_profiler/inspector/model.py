"""What the inspector finds: frozen values that the command line and tests consume.

Owns no thread. Imports nothing of the package. Identifiers are lower-case hexadecimal, as profilers print them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Interface(Enum):
    """A published interface: the specification by which memory is read."""

    ELASTIC = "elastic"
    LABELS = "custom-labels"


class TlsKind(Enum):
    """How a thread-local variable is found from the thread pointer."""

    STATIC = "static"
    """At a constant offset: the only kind that host profilers follow."""
    DYNAMIC = "dynamic"
    """Through the thread's table of modules, allocated at first use."""
    UNKNOWN = "unknown"
    """Its descriptor could not be found or understood."""


class Level(Enum):
    """What a reason means for a host profiler."""

    BLOCKS = "blocks"
    """It sees nothing through this interface."""
    LOSES = "loses"
    """It sees less than was published."""
    NOTE = "note"
    """Nothing is lost by it now."""


@dataclass(frozen=True, slots=True)
class Library:
    """A file mapped in the process that publishes an interface.

    Attributes:
        interface: what it publishes.
        path: as the process sees it.
        tls: how its thread-local pointer is reached.
        offset: distance of that pointer from the thread pointer in bytes, if static.
    """

    interface: Interface
    path: str
    tls: TlsKind
    offset: int | None


@dataclass(frozen=True, slots=True)
class CorrelationRecord:
    """A thread's record of the Elastic interface ("Thread Local Storage Layout").

    Attributes:
        minor_version: layout-minor-version.
        valid: the valid byte; 0 while the record is being written.
        trace_present: the trace-present byte.
        trace_flags: W3C trace flags.
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        transaction_id: 16 hexadecimal digits.
    """

    minor_version: int
    valid: int
    trace_present: int
    trace_flags: int
    trace_id: str
    span_id: str
    transaction_id: str

    @property
    def is_usable(self) -> bool:
        """Whether the specification lets a reader use the ids."""
        return self.valid != 0 and self.trace_present != 0


@dataclass(frozen=True, slots=True)
class Label:
    """One custom label; both parts are arbitrary bytes."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a host profiler from seeing (all of) an interface; `reasons.CATALOGUE` has it in words."""

    interface: Interface
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """What one thread publishes.

    Attributes:
        tid: its id in the inspector's pid namespace.
        name: as the kernel knows it, at most 15 bytes.
        correlation: None if its pointer is null or nothing could be read; in strict mode also if a host would see none.
        labels: None if its pointer is null or nothing could be read.
        problems: why a host profiler would see less than was published.
        was_stopped: False if the thread was not stopped and read (nothing to read, or it sleeps inside the kernel).
        memory: what else was asked for, read in the same stop.
        instruction_pointer: where in its code it stood; None unless it was asked for.
    """

    tid: int
    name: str
    correlation: CorrelationRecord | None
    labels: tuple[Label, ...] | None
    problems: tuple[Problem, ...] = ()
    was_stopped: bool = True
    memory: bytes = b""
    instruction_pointer: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessStorage:
    """The Elastic process storage ("Process Storage Layout").

    Attributes:
        minor_version: layout-minor-version.
        service_name: service-name.
        service_environment: service-environment.
        socket_path: socket-file-path, as the process sees it.
    """

    minor_version: int
    service_name: str
    service_environment: str
    socket_path: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a host profiler sees nothing, or less than was published.

    Attributes:
        code: its name in docs/inspect.md.
        level: what it means.
        interface: which interface suffers.
        text: what is wrong, in words.
        remedy: what to do about it.
        tids: the threads it is about; empty if it is about the process.
    """

    code: str
    level: Level
    interface: Interface
    text: str
    remedy: str
    tids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """One read of a whole process.

    Attributes:
        pid: the process.
        command: its name.
        time_ns: when the read began, nanoseconds since the epoch.
        strict_host: True if values are what real host profilers would see, False if what the specifications say.
        libraries: what it has mapped.
        storage: None if there is none or a host profiler would refuse it (strict).
        socket_accepted: whether messages sent to the storage's socket would arrive; None without a storage.
        threads: in the kernel's order.
        reasons: worst first.
    """

    pid: int
    command: str
    time_ns: int
    strict_host: bool
    libraries: tuple[Library, ...]
    storage: ProcessStorage | None
    socket_accepted: bool | None
    threads: tuple[ThreadReading, ...]
    reasons: tuple[Reason, ...]

    @property
    def followed_interfaces(self) -> tuple[str, ...]:
        """The interfaces that a host profiler would follow in this process, by name."""
        return tuple(interface.value for interface in Interface if self.is_visible(interface))

    def is_visible(self, interface: Interface) -> bool:
        """Whether a host profiler would follow `interface` in this process."""
        return any(library.interface is interface for library in self.libraries) and not any(
            reason.interface is interface and reason.level is Level.BLOCKS and not reason.tids
            for reason in self.reasons
        )
