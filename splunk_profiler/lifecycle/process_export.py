"""The output of a process whose stream goes to an exporter process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from splunk_profiler.config import Resolved
from splunk_profiler.config.handover import to_values
from splunk_profiler.export.stream_output import StreamOutput
from splunk_profiler.exporter_process.launch import Interpreter, Launcher, absolute_path
from splunk_profiler.exporter_process.tree import tree_token
from splunk_profiler.model import RecordCounters
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler.exporter_process.connection import ExporterConnection

_FALLBACK_AFTER_S = 3.0  # of failures, with no report of an exporter since the start
_LOST_AFTER_S = 60.0  # with none since there was one: it is started again meanwhile, some six times


class ProcessExport(StreamOutput):
    """A connection to the exporter process of this tree of processes, which is started with the first `send`."""

    has_own_process = True

    def __init__(self, connection: ExporterConnection, clock: Callable[[], float] = clocks.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._generation = self._connection.generation
        self._cpu_ns = 0
        self._failing_since_s: float | None = None  # of sends; the exporter has reported nothing since then
        self._is_reached = False  # it has reported
        self._is_connection_reached = False
        self._counters = RecordCounters()  # of this connection
        self._earlier_counters = RecordCounters()

    @classmethod
    def new(cls, interpreter: Interpreter) -> ProcessExport:
        """Return the output of the first process of a tree."""
        from splunk_profiler.exporter_process.connection import ExporterConnection  # noqa: PLC0415  # needs the walker

        launcher = Launcher(interpreter)
        return cls(ExporterConnection(launcher, tree_token(launcher.variables)))

    def successor(self) -> ProcessExport:
        """Return the output of a forked child."""
        return ProcessExport(self._connection.successor())

    def settings(self, resolved: Resolved) -> dict[str, Any]:
        """Return the settings with which the exporter process exports, secrets included."""
        return {**to_values(resolved), "pid": os.getpid(), "path": [*absolute_path()]}

    def send(self, data: bytes) -> bool:
        """Send `data` whole, without waiting; return False if it is lost and the stream has to begin anew."""
        self._receive()
        generation = self._connection.generation
        if generation != self._generation:  # the stream has to begin anew with a new connection
            if self._is_connection_reached:
                self._failing_since_s = None  # of the earlier exporter, which may have been stopped for long
            self._generation, self._is_connection_reached = generation, False
            lost = self._counters.waiting
            ended = self._counters._replace(waiting=0, lost_at_exit=self._counters.lost_at_exit + lost)
            self._earlier_counters, self._counters = _add(self._earlier_counters, ended), RecordCounters()
            if self._connection.cannot_start:
                self._note_failure()
            return False
        is_sent = self._connection.send(data)
        if not is_sent or self._connection.failure:
            self._note_failure()
        return is_sent

    def stop(self, timeout_s: float) -> None:
        """Have everything sent on, within about `timeout_s` seconds."""
        if not self._connection.close(timeout_s):
            logger.debug("the exporter process has not confirmed in time that everything is sent")
        self._receive()

    def counters(self) -> RecordCounters:
        """Return the numbers of records that the exporter process has reported last, up to a second ago.

        What waits in one that has ended is lost.
        """
        return _add(self._earlier_counters, self._counters)

    def cpu_ns(self) -> int:
        """Return the CPU time of the exporter process for this process, as it has reported last."""
        return self._cpu_ns

    def backlog_bytes(self) -> int:
        """Return the size of what waits here for the exporter process."""
        return self._connection.unsent_bytes

    def _note_failure(self) -> None:
        now_s = self._clock()
        self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        # The kernel takes data also for one that has not begun to read, and may end before.
        limit_s = _LOST_AFTER_S if self._is_reached else _FALLBACK_AFTER_S
        if self._connection.cannot_start or now_s - self._failing_since_s >= limit_s:
            # One that was reached and is stopped has a connection still.
            self.failure = self._connection.failure or ("" if self._is_connection_reached else "it reports nothing")

    def _receive(self) -> None:
        for message in self._connection.receive():
            try:
                values = json.loads(message)
                if "cpu_ns" in values:  # not only a line for the log: it works
                    self._is_reached = self._is_connection_reached = True
                    self._failing_since_s, self.failure = None, ""
                    self._cpu_ns = values["cpu_ns"]
                if "counters" in values:
                    self._counters = RecordCounters(**values["counters"])
                if "text" in values:
                    logger.log(values["level"], "%s", values["text"])
            except (ValueError, KeyError, AttributeError, TypeError):
                self.failure = message.decode("utf-8", "replace")


def _add(one: RecordCounters, other: RecordCounters) -> RecordCounters:
    """Return the sums."""
    return RecordCounters(*map(sum, zip(one, other, strict=True)))
