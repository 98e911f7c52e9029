"""The output of a process whose stream goes to an exporter process."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from splunk_profiler.exporter_process.launch import Launcher
from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler.exporter_process.connection import ExporterConnection

_FALLBACK_AFTER_S = 3.0  # without a connection since the start


class ProcessExport:
    """A connection to the exporter process of this tree of processes; `parent` is the parent's in a forked child."""

    def __init__(self, parent: ProcessExport | None) -> None:
        self._connection: ExporterConnection = _new_connection() if parent is None else parent._connection.successor()
        self._generation = self._connection.generation
        self._cpu_ns = 0
        self._first_failure_s: float | None = None  # since the first send, which has had no success yet
        self._has_sent = False
        self._refusal = ""  # the exporter process says that it cannot work

    @property
    def failure(self) -> str:
        """The reason why there is no exporter process, once it is clear that there will be none; else empty."""
        since_s = self._first_failure_s
        if self._refusal:
            return self._refusal
        if self._has_sent or since_s is None or time.monotonic() - since_s < _FALLBACK_AFTER_S:
            return ""
        return self._connection.failure or "it takes no data"

    def start(self) -> None:
        """Do nothing: the exporter is started with the first captures."""

    def send(self, data: bytes) -> bool:
        """Send `data` whole, without waiting; return False if it is lost and the stream has to begin anew."""
        self._receive()
        generation = self._connection.generation
        if generation != self._generation:  # the stream has to begin anew with a new connection
            self._generation = generation
            return False
        is_sent = self._connection.send(data)
        self._has_sent = self._has_sent or is_sent
        if not is_sent and self._first_failure_s is None:
            self._first_failure_s = time.monotonic()
        return is_sent

    def stop(self, timeout_s: float) -> None:
        """Have everything sent on, within about `timeout_s` seconds."""
        if self._has_sent and not self._connection.close(timeout_s):
            logger.debug("the exporter process has not confirmed in time that everything is sent")
        self._receive()

    def fork_participants(self) -> list[Any]:
        """Return nothing: a fork interrupts none of it."""
        return []

    def abandon(self) -> bool:
        """Return True: a forked child can start anew."""
        return True

    def cpu_ns(self) -> int:
        """Return the CPU time of the exporter process for this process, as far as it has told."""
        return self._cpu_ns

    def _receive(self) -> None:
        for message in self._connection.receive():
            try:
                values = json.loads(message)
                self._cpu_ns = values.get("cpu_ns", self._cpu_ns)
                if "text" in values:
                    logger.log(values["level"], "%s", values["text"])
            except (ValueError, KeyError, AttributeError, TypeError):
                self._refusal = message.decode("utf-8", "replace")


def _new_connection() -> ExporterConnection:
    from splunk_profiler.exporter_process.connection import ExporterConnection  # noqa: PLC0415  # needs the walker

    return ExporterConnection(Launcher())
