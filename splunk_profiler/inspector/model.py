"""Findings of the inspector. Identifiers are lower-case hexadecimal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Interface(Enum):
    """A published interface, which is the specification of a memory layout."""

    ELASTIC = "elastic"
    LABELS = "custom-labels"


class TlsKind(Enum):
    """A way from the thread pointer to a thread-local variable."""

    STATIC = "static"
    """A constant offset; the only kind that host profilers follow."""
    DYNAMIC = "dynamic"
    """The thread's table of modules, which is allocated at first use."""
    UNKNOWN = "unknown"
    """Unknown, because the descriptor was not found or not understood."""


class Level(Enum):
    """The consequence of a reason for a host profiler."""

    BLOCKS = "blocks"
    """The host profiler sees nothing through the interface."""
    LOSES = "loses"
    """The host profiler sees less than was published."""
    NOTE = "note"
    """Nothing is lost at present."""


@dataclass(frozen=True, slots=True)
class ThreadLocalVariable:
    """A pointer that each thread has, and the way to it from the thread pointer.

    Attributes:
        offset: bytes from the thread pointer, if static.
        module: index of its module in the thread's table, if dynamic and that table is understood.
        module_offset: bytes from the start of the module's block.
    """

    tls: TlsKind = TlsKind.UNKNOWN
    offset: int | None = None
    module: int | None = None
    module_offset: int = 0

    @property
    def is_found(self) -> bool:
        """True if it can be read."""
        return self.offset is not None or self.module is not None


@dataclass(frozen=True, slots=True)
class PublishingLibrary:
    """A mapped file that publishes an interface.

    Attributes:
        path: path as the process sees it.
        process_wide: address of the interface's other symbol; None if there is none.
    """

    interface: Interface
    path: str
    variable: ThreadLocalVariable = ThreadLocalVariable()
    process_wide: int | None = None


@dataclass(frozen=True, slots=True)
class CorrelationRecord:
    """A thread's record of the Elastic interface ("Thread Local Storage Layout").

    `valid` is 0 during a write; `trace_flags` are W3C's. The ids have 32, 16 and 16 digits.
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
        """True if the specification lets a reader use the ids."""
        return self.valid != 0 and self.trace_present != 0


@dataclass(frozen=True, slots=True)
class Label:
    """A custom label; key and value are arbitrary bytes."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault by which a host profiler sees less; `reasons.CATALOGUE` explains each code."""

    interface: Interface
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """The published values of one thread.

    Attributes:
        tid: thread id in the inspector's pid namespace.
        name: the kernel's name of the thread, at most 15 bytes.
        correlation: None if its pointer is null or unreadable; in strict mode also if it is unusable.
        labels: None if its pointer is null or unreadable.
        problems: faults by which a host profiler would see less than was published.
        was_stopped: False if there is nothing to read or the thread sleeps inside the kernel.
        instruction_pointer: None unless it was requested.
    """

    tid: int
    name: str
    correlation: CorrelationRecord | None
    labels: tuple[Label, ...] | None
    problems: tuple[Problem, ...] = ()
    was_stopped: bool = True
    instruction_pointer: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessStorage:
    """The Elastic process storage ("Process Storage Layout"); the path as the process sees it."""

    minor_version: int
    service_name: str
    service_environment: str
    socket_path: str


@dataclass(frozen=True, slots=True)
class Reason:
    """An explanation of why a host profiler sees nothing, or less than was published.

    Its `code` is the name in docs/host-profilers/inspect.md; `tids` is empty if it concerns the whole process.
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
        time_ns: start of the read in nanoseconds since the epoch.
        strict_host: True for values as real host profilers see them, False for the specifications'.
        storage: None if there is none, or (strict) if a host profiler would refuse it.
        socket_accepted: True if messages to the storage's socket would arrive; None without a storage.
        threads: in the kernel's order.
        reasons: worst first.
    """

    pid: int
    command: str
    time_ns: int
    strict_host: bool
    libraries: tuple[PublishingLibrary, ...]
    storage: ProcessStorage | None
    socket_accepted: bool | None
    threads: tuple[ThreadReading, ...]
    reasons: tuple[Reason, ...]

    @property
    def followed_interfaces(self) -> tuple[str, ...]:
        """The names of the interfaces that a host profiler would follow in this process."""
        return tuple(interface.value for interface in Interface if self.is_visible(interface))

    def is_visible(self, interface: Interface) -> bool:
        """Return True if a host profiler would follow `interface` in this process."""
        return any(library.interface is interface for library in self.libraries) and not any(
            reason.interface is interface and reason.level is Level.BLOCKS and not reason.tids
            for reason in self.reasons
        )
