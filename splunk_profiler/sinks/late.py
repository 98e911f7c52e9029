"""A sink that is opened by its first export.

gRPC and the OpenTelemetry SDK are large and import much else (`ssl`, `socket`): loading them while the
application is still importing would slow its start, could meet it half-way through a circular import, and
would come before the application could patch those modules (gevent). So they are loaded on the exporting
thread, when the main thread is no longer inside an import. Imports the model only.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from splunk_profiler.guard import logger
from splunk_profiler.model import Batch, Delivery, Outcome, Sink
from splunk_profiler.threads import Signal

_PATIENCE_S = 10.0
_LOOK_AGAIN_S = 0.05
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class LateSink:
    """Opens its sink when the first batch comes.

    Args:
        open_sink: makes the real one; called once, on the exporting thread.
    """

    def __init__(self, open_sink: Callable[[], Sink]) -> None:
        self._open_sink = open_sink
        self._sink: Sink | None = None
        self._hurry = Signal()
        self._hurried_s: float | None = None
        self._closed = False
        self._broken = ""

    def export(self, batch: Batch) -> Outcome:
        """See `Sink.export`. Waits until the main thread imports nothing, at most 10 seconds."""
        if self._sink is None and not self._broken:
            self._wait_for_quiet()
            try:
                self._sink = self._opened()
            except Exception as error:
                self._broken = f"the exporter cannot be made: {error}"
                logger.debug("the exporter cannot be made", exc_info=True)
        if self._sink is None:
            return Outcome(Delivery.REJECTED, self._broken)
        return self._sink.export(batch)

    def hurry(self, timeout_s: float) -> None:
        """See `Sink.hurry`. Waits no longer for the application's imports, either."""
        self._hurried_s = timeout_s
        self._hurry.set()
        if self._sink is not None:
            self._sink.hurry(timeout_s)

    def interrupt(self) -> None:
        """See `Sink.interrupt`."""
        if self._sink is not None:
            self._sink.interrupt()

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        self._closed = True
        self._hurry.set()
        if self._sink is not None:
            self._sink.shutdown()

    def _ending(self) -> bool:
        return self._closed or self._hurried_s is not None

    def _opened(self) -> Sink:
        sink = self._open_sink()
        if self._hurried_s is not None:
            sink.hurry(self._hurried_s)
        if self._closed:  # while it was being made
            sink.shutdown()
        return sink

    def _wait_for_quiet(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not self._ending() and time.monotonic() < until and _main_thread_imports():
            self._hurry.wait(_LOOK_AGAIN_S)


def _main_thread_imports() -> bool:
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False
