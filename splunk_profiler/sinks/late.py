"""A sink that is opened late, on the exporting thread.

gRPC and the OpenTelemetry SDK are large and import much else (`ssl`, `socket`): loading them while the
application is still importing would slow its start, could meet it half-way through a circular import, and
would come before the application could patch those modules (gevent). So they are loaded when nobody has
imported anything for a moment. A fork waits for that: in a child, a module that the exporting thread was
importing would stay locked for ever. Imports the model and `threads` only.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from collections.abc import Callable
from typing import Generic

from splunk_profiler.guard import logger
from splunk_profiler.model import Batch, Delivery, Outcome, Record, Sink
from splunk_profiler.threads import Signal, patch_pending, real_lock

_PATIENCE_S = 10.0
_DESCRIPTION_S = 5.0
_QUIET_S = 0.3
_LOOK_AGAIN_S = 0.05


class LateSink(Generic[Record]):
    """Opens its sink before the first batch is sent.

    Args:
        open_sink: makes the real one; called once, on the exporting thread.
        is_described: whether it is known which service sends; asked once the sink is made.
    """

    def __init__(self, open_sink: Callable[[], Sink[Record]], is_described: Callable[[], bool] = lambda: True) -> None:
        self._open_sink = open_sink
        self._is_described = is_described
        self._sink: Sink[Record] | None = None
        self._opening = real_lock()  # held while the sink is made, and by a thread that forks
        self._forking = 0
        self._hurry = Signal()
        self._hurried_s: float | None = None
        self._closed = False
        self._broken = ""

    def open(self) -> None:
        """Wait until nothing is being imported, at most 10 seconds, then make the sink. Never raises.

        Waits on, until 5 seconds after the start, for an application that has yet to say which service it is:
        records under the name ``unknown_service`` would look like another one.
        """
        quiet_since = began = time.monotonic()
        while not self._ending():
            now = time.monotonic()
            if _somebody_imports() or patch_pending():
                quiet_since = now
            if now - quiet_since >= _QUIET_S or now - began >= _PATIENCE_S:
                break
            self._hurry.wait(_LOOK_AGAIN_S)
        else:
            return  # the process ends: what there is to send decides whether the sink is needed
        self._make()
        while not self._ending() and time.monotonic() - began < _DESCRIPTION_S and not self._described():
            self._hurry.wait(_LOOK_AGAIN_S)

    def export(self, batch: Batch[Record]) -> Outcome:
        """See `Sink.export`."""
        if self._sink is None:
            self._make()
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

    def hold_for_fork(self, timeout_s: float) -> None:
        """Wait until the sink is not being made and let it not be made until `release_after_fork`."""
        if self._opening.acquire(timeout=timeout_s):
            self._forking = get_ident()

    def release_after_fork(self) -> None:
        """Go on after `hold_for_fork`, in the parent; does nothing on a thread that does not hold."""
        if self._forking == get_ident():
            self._forking = 0
            self._opening.release()

    def _described(self) -> bool:
        try:
            return self._is_described()
        except Exception:
            logger.debug("the service's description cannot be read", exc_info=True)
            return True

    def _ending(self) -> bool:
        return self._closed or self._hurried_s is not None

    def _make(self) -> None:
        with self._opening:
            if self._sink is not None or self._broken:
                return
            try:
                sink = self._open_sink()
            except Exception as error:
                self._broken = f"the exporter cannot be made: {error}"
                logger.debug("the exporter cannot be made", exc_info=True)
                return
            if self._hurried_s is not None:
                sink.hurry(self._hurried_s)
            if self._closed:  # while it was being made
                sink.shutdown()
            self._sink = sink


def _somebody_imports() -> bool:
    """Whether any thread is inside an import: the import system keeps a lock for each module under way."""
    return bool(getattr(sys.modules.get("_frozen_importlib"), "_module_locks", ()))
