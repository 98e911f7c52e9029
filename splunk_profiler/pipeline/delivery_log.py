"""The log of lost deliveries: a warning at the first failure, then at most one a minute; and the last results.

Processes of a tree may share a limit: with no collector, one that forks for each job would log for each job.

Runs on the exporting thread. Imports `samples` and `system.guard` only.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import NamedTuple

from splunk_profiler.samples import ExportResult, ExportStatus
from splunk_profiler.system.guard import logger

_MINUTE_NS = 60_000_000_000


class LastResults(NamedTuple):
    """The last results of exports, at instants on a monotonic clock; None if there was none.

    Attributes:
        delivered_ns: of the last one with records that the receiver has taken.
        failed_ns: of the last one with records that were not delivered, or refused.
        failure: why, in words for a person.
    """

    delivered_ns: int | None = None
    failed_ns: int | None = None
    failure: str = ""


class WarningLimit:
    """Lets one warning a minute through, of all logs that share it, also in forked children."""

    def __init__(self) -> None:
        # Shared memory: forks may keep a parent's own exports from ever failing, which its children could inherit.
        self._next_ns = memoryview(mmap.mmap(-1, 8)).cast("q")

    def is_due(self, now_ns: int) -> bool:
        """Return True if a warning may be logged now, which begins the next minute."""
        if now_ns < self._next_ns[0]:
            return False
        self._next_ns[0] = now_ns + _MINUTE_NS
        return True


class DeliveryLog:
    """Logs the results of exports; `limit` is one of its own by default.

    Attributes:
        last_results: replaced as a whole, for other threads.
    """

    def __init__(self, monotonic_ns: Callable[[], int], limit: WarningLimit | None = None) -> None:
        self._now_ns = monotonic_ns
        self._limit = limit or WarningLimit()
        self._has_logged = False  # a warning
        self._has_warned = False  # of records that are not delivered, since the last delivery
        self._reported_dropped = 0
        self.last_results = LastResults()

    def log_result(self, result: ExportResult, delivered: int, waiting: int, dropped: int) -> None:
        """Log a result, with the numbers of records that it delivered, that are queued, and lost since the start."""
        self._keep(result, delivered)
        lost = dropped - self._reported_dropped
        if result.export_status is ExportStatus.DELIVERED:
            if self._has_warned:
                logger.info("profiling records are delivered again; %d were dropped meanwhile", lost)
                self._reported_dropped, lost = dropped, 0
            self._has_warned = False
            if lost and self._is_due():
                self._reported_dropped = dropped
                reason = f"the receiver refused some: {result.detail}" if result.detail else "the queue was full"
                logger.warning("%d profiling records were dropped: %s", lost, reason)
            return
        if self._is_due():
            self._has_warned = True
            self._reported_dropped = dropped
            logger.warning(
                "profiling records are not delivered: %s (%d wait, %d were dropped since the last such line)",
                self.last_results.failure,
                waiting,
                lost,
            )

    def log_exit(self, lost: int) -> None:
        """Log the number of records that the ending process did not deliver, unless its warnings were left out."""
        if lost and (self._has_logged or self._is_due()):
            logger.warning("%d profiling records were not delivered before the process ended", lost)

    def _keep(self, result: ExportResult, delivered: int) -> None:
        now = self._now_ns()
        if delivered:  # a receiver may take a request and refuse all of its records
            self.last_results = self.last_results._replace(delivered_ns=now)
        if result.rejected or result.export_status is not ExportStatus.DELIVERED:
            failure = result.detail or "no reason given"
            self.last_results = self.last_results._replace(failed_ns=now, failure=failure)

    def _is_due(self) -> bool:
        is_due = self._limit.is_due(self._now_ns())
        self._has_logged = self._has_logged or is_due
        return is_due
