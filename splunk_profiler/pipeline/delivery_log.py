"""Tells the user, in the log, whether records arrive: at once when they stop to, then once a minute at most.

Runs on the exporting thread. Imports the model and `system.guard` only.
"""

from __future__ import annotations

from collections.abc import Callable

from splunk_profiler.model import ExportResult, ExportStatus
from splunk_profiler.system.guard import logger

_MINUTE_NS = 60_000_000_000


class DeliveryReport:
    """Turns the outcomes of exports into log lines.

    Args:
        monotonic_ns: the clock.
    """

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._now_ns = monotonic_ns
        self._next_ns: int | None = None
        self._failing = False
        self._told = False
        self._reported = 0

    def settled(self, outcome: ExportResult, waiting: int, dropped: int) -> None:
        """An export was answered; `waiting` records are queued, `dropped` were lost since the start."""
        lost = dropped - self._reported
        if outcome.delivery is ExportStatus.DELIVERED:
            if self._failing and self._told:
                logger.info("profiling records are delivered again; %d were dropped meanwhile", lost)
                self._reported, lost = dropped, 0
            self._failing = self._told = False
            if lost and self._due():
                self._reported = dropped
                why = f"the receiver refused some: {outcome.detail}" if outcome.detail else "the queue was full"
                logger.warning("%d profiling records were dropped: %s", lost, why)
            return
        self._failing = True
        if self._due():
            self._told = True
            self._reported = dropped
            logger.warning(
                "profiling records are not delivered: %s (%d wait, %d were dropped since the last such line)",
                outcome.detail or "no reason given",
                waiting,
                lost,
            )

    def ended(self, lost: int) -> None:
        """The process ends and `lost` records were not delivered."""
        if lost:
            logger.warning("%d profiling records were not delivered before the process ended", lost)

    def _due(self) -> bool:
        now = self._now_ns()
        if self._next_ns is not None and now < self._next_ns:
            return False
        self._next_ns = now + _MINUTE_NS
        return True
