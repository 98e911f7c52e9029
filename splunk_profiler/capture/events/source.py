"""The interface of a source of events, which each kind of event implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from splunk_profiler.raw import RawBlocksEnded, RawEvent, RawTask


class EventSource(Protocol):
    """A recorder of events from `start` to `stop`. Its methods do not block."""

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording and leave nothing behind in the interpreter. Idempotent; also in a forked child."""

    def stretch(self, ratio: float) -> None:  # noqa: ARG002  # for those that override it
        """Record less often by this ratio, of at least 1, than at the start; by default nothing changes."""
        return

    def drain(self) -> Sequence[RawEvent | RawBlocksEnded | RawTask]:
        """Return the events since the last call, oldest first, at most some thousand."""
