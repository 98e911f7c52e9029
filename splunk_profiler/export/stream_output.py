"""The base of the outputs, each of which takes the stream of a process."""

from __future__ import annotations

from typing import Any

from splunk_profiler.config import Resolved
from splunk_profiler.model import RecordCounters


class StreamOutput:
    """The output of a stream. The methods here are those of one that takes, starts and holds nothing.

    Attributes:
        failure: the reason why the output will never work, once that is clear; else empty.
        has_own_process: True if another process does the work, which may go on after the end of this one.
    """

    failure = ""
    has_own_process = False

    def settings(self, resolved: Resolved) -> dict[str, Any]:
        """Return the settings that the stream has; without secrets, unless they are needed there."""
        return resolved.config.shareable()

    def start(self) -> None:
        """Start what has to run before the first `send`; `RuntimeError` if the process can make no more threads."""

    def send(self, data: bytes) -> bool:  # noqa: ARG002  # as other outputs
        """Take further bytes whole, without waiting; return False if they are lost and the stream has to begin anew."""
        return False

    def stop(self, timeout_s: float) -> None:
        """Have everything sent on and end, within about `timeout_s` seconds."""

    def fork_participants(self) -> list[Any]:
        """Return the parts that a fork holds."""
        return []

    def abandon(self) -> bool:
        """Return True if a forked child can start anew."""
        return True

    def counters(self) -> RecordCounters:
        """Return the numbers of records that were made of the stream, as far as they are known here."""
        return RecordCounters()

    def cpu_ns(self) -> int:
        """Return the CPU time of what works for the output, apart from the thread that calls `send`."""
        return 0

    def backlog_bytes(self) -> int:
        """Return the size of what `send` has taken and nothing has read yet."""
        return 0
