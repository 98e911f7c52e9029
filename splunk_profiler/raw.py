"""Data that passes between capture and pipeline: raw snapshots, raw events and the periods they are taken at.

Imports the model only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread as PythonThread
from typing import Any, Protocol

from splunk_profiler.model import Event, Stack

RUNS = 2  # `RawThread.state` of a thread that had a processor; see ``_walker.pyi``
_SLOWEST_LEAD_NS = 1_000_000_000
_LONGEST_NS = 60_000_000_000


class RawThread(Protocol):
    """One thread as a walker saw it; see ``_walker.pyi``."""

    @property
    def key(self) -> int: ...
    @property
    def ident(self) -> int: ...
    @property
    def native_id(self) -> int: ...
    @property
    def stack(self) -> Stack: ...
    @property
    def context(self) -> Any | None: ...
    @property
    def labels(self) -> Any | None: ...
    @property
    def cpu_ns(self) -> int: ...
    @property
    def state(self) -> int | None: ...
    @property
    def python_thread(self) -> PythonThread | None: ...


class RawCollection(Protocol):
    """A collection of garbage as a walker noticed it; see ``_walker.pyi``."""

    @property
    def time_ns(self) -> int: ...
    @property
    def thread(self) -> RawThread: ...
    @property
    def generation(self) -> int: ...
    @property
    def stands_for(self) -> int: ...
    @property
    def duration_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event as its source (`capture.events`) has noticed it.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        thread: on which thread, with its stack, context and labels at that moment.
        event: what.
    """

    time_ns: int
    thread: RawThread
    event: Event


class RawSnapshot(Protocol):
    """All threads as a walker saw them at one instant; see ``_walker.pyi``."""

    @property
    def time_ns(self) -> int: ...
    @property
    def latency_ns(self) -> int: ...
    @property
    def period_ns(self) -> int: ...
    @property
    def threads(self) -> Sequence[RawThread]: ...
    @property
    def focused(self) -> bool: ...
    @property
    def since_ns(self) -> int: ...
    @property
    def process_cpu_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Periods:
    """How far apart deadlines are; 0: there are none.

    Attributes:
        all_ns: those of all threads.
        focused_ns: those of the focus.
    """

    all_ns: int
    focused_ns: int

    @property
    def all_leads(self) -> bool:
        """True if deadlines of all threads come often enough to say what both cost."""
        return self.all_ns > 0 and (not self.focused_ns or self.all_ns <= _SLOWEST_LEAD_NS)

    @property
    def leading_ns(self) -> int:
        """The period that a limit changes, and both in its ratio: of all threads, or a second, or the only one."""
        if self.all_leads or not self.all_ns:
            return self.all_ns or self.focused_ns
        return _SLOWEST_LEAD_NS

    @property
    def closest_ns(self) -> int:
        """How far apart the focus is looked at: a deadline of all threads serves it as well."""
        return min(self.leading_ns, self.focused_ns)

    def stretched(self, leading_ns: int) -> Periods:
        """Both in the ratio of `leading_ns` to the one of these; where all threads do not lead, to a minute at most."""
        if not self.all_ns:
            return Periods(0, leading_ns)
        all_ns = leading_ns
        if not self.all_leads:
            all_ns = max(self.all_ns, min(self.all_ns * leading_ns // self.leading_ns, _LONGEST_NS))
        focused_ns = self.focused_ns * leading_ns // self.leading_ns
        return Periods(all_ns, min(focused_ns, max(all_ns, self.focused_ns)))  # beyond that it never comes
