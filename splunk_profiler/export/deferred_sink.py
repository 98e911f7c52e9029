"""A sink that is opened by the exporting thread, before its first export. Imports `samples` and `system` only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Record, Sink
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import WakeEvent

_MAX_SERVICE_NAME_WAIT_S = 5.0
_POLL_INTERVAL_S = 0.05
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0  # after a failure to open; each attempt may import


class DeferredSink(Generic[Record]):
    """A sink that opens the real sink before the first export.

    Args:
        open_sink: makes the real sink; called on the exporting thread, again 1, 2, 4 … 30 seconds after it has failed.
        is_service_known: called after `open_sink`, until it returns True or the sink is 5 seconds old.
        clock: for that wait and the pauses, in seconds.
    """

    def __init__(
        self,
        open_sink: Callable[[], Sink[Record]],
        is_service_known: Callable[[], bool] | None = None,
        *,
        clock: Callable[[], float] = clocks.monotonic,
    ) -> None:
        self._open_sink = open_sink
        self._clock, self._made_s = clock, clock()
        self._is_service_known = is_service_known
        self._sink: Sink[Record] | None = None
        self._open_error = ""
        self._next_open_s, self._pause_s = 0.0, _FIRST_PAUSE_S
        self._shutdown_begun = WakeEvent()
        self._shutdown_timeout_s: float | None = None
        self._is_closed = False

    def open(self) -> None:
        """Open the sink. Never raises.

        Then waits for the service's name, until 5 seconds after the sink was made: records of
        ``unknown_service`` would look like those of another service.
        """
        self._wait_to_open()
        if self._is_shutting_down():
            return  # an export opens the sink if there is a batch
        self._try_to_open()
        while (
            not self._is_shutting_down()
            and self._clock() - self._made_s < _MAX_SERVICE_NAME_WAIT_S
            and not self._has_known_service()
        ):
            self._shutdown_begun.wait(_POLL_INTERVAL_S)

    def export(self, batch: Batch[Record]) -> ExportResult:
        """Open the sink if necessary and send `batch`."""
        self._try_to_open()
        if self._sink is None:
            return ExportResult(ExportStatus.RETRY, self._open_error)  # there may be no room for a thread
        return self._sink.export(batch)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """End the waits of `open` and pass the deadline on."""
        self._shutdown_timeout_s = timeout_s
        self._shutdown_begun.set()
        if self._sink is not None:
            self._sink.set_shutdown_deadline(timeout_s)

    def interrupt(self) -> None:
        """End an export in flight."""
        if self._sink is not None:
            self._sink.interrupt()

    def shutdown(self) -> None:
        """End an export in flight and refuse later ones."""
        self._is_closed = True
        self._shutdown_begun.set()
        if self._sink is not None:
            self._sink.shutdown()

    def _wait_to_open(self) -> None:
        """Wait until the sink may be opened."""

    def _try_to_open(self) -> None:
        if self._sink is not None or self._clock() < self._next_open_s:
            return
        try:
            self._open_steps()
        except Exception as error:
            self._next_open_s = self._clock() + self._pause_s
            self._pause_s = min(self._pause_s * 2, _MAX_PAUSE_S)
            self._open_error = f"the exporter cannot be made: {str(error) or type(error).__name__}"
            logger.debug("the exporter cannot be made", exc_info=True)

    def _open_steps(self) -> None:
        sink = self._sink = self._open_sink()
        # Read after the assignment: a call that sets one of them later finds the sink, and tells it.
        if self._shutdown_timeout_s is not None:
            sink.set_shutdown_deadline(self._shutdown_timeout_s)
        if self._is_closed:
            sink.shutdown()

    def _has_known_service(self) -> bool:
        try:
            return self._is_service_known is None or self._is_service_known()
        except Exception:
            logger.debug("the service's description cannot be read", exc_info=True)
            return True

    def _is_shutting_down(self) -> bool:
        return self._is_closed or self._shutdown_timeout_s is not None
