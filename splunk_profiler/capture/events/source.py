"""The interface of a source of events, which each kind of event implements, and a base of those that look for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from splunk_profiler.raw import RawEvent
from splunk_profiler.stream.records import FreedBlocksRecord

_COST_FACTOR = 200  # looking takes a 200th of a processor at most


class EventSource(Protocol):
    """A recorder of events from `start` to `stop`. Its methods do not block."""

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording and leave nothing behind in the interpreter. Idempotent; also in a forked child."""

    def slow_down(self, ratio: float) -> None:  # noqa: ARG002  # for those that override it
        """Record less often by this ratio, of at least 1, than at the start; by default nothing changes."""
        return

    def drain(self) -> Sequence[RawEvent | FreedBlocksRecord]:
        """Return the events since the last call, oldest first, at most some thousand."""


class PacedSource(EventSource):
    """A source of events that are there to be found: it looks every `period_ns`, or less often if that costs much."""

    def __init__(self, period_ns: int, monotonic_ns: Callable[[], int], cpu_ns: Callable[[], int]) -> None:
        self._period_ns = period_ns
        self._now_ns = monotonic_ns
        self._cpu_ns = cpu_ns  # a wait for a processor, or for the GIL, is no cost
        self._is_recording = False
        self._last_ns = self._due_ns = 0

    def start(self) -> None:
        """Start recording."""
        self._last_ns = self._now_ns()
        self._due_ns = self._last_ns + self._period_ns
        self._is_recording = True

    def stop(self) -> None:
        """Stop recording."""
        self._is_recording = False

    def drain(self) -> Sequence[RawEvent]:
        """Return what is there now, if it is due."""
        began_ns = self._now_ns()
        if not self._is_recording or began_ns < self._due_ns:
            return ()
        since_ns, self._last_ns = began_ns - self._last_ns, began_ns
        used_ns = self._cpu_ns()
        events = self._look(since_ns)
        self._due_ns = began_ns + max(self._period_ns, _COST_FACTOR * (self._cpu_ns() - used_ns))
        return events

    @abstractmethod
    def _look(self, since_ns: int) -> Sequence[RawEvent]:
        """Return what is there now; `since_ns` is the time since it looked before."""
