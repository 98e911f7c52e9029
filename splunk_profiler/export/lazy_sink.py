"""A sink that is opened late, on the exporting thread.

gRPC and the OpenTelemetry SDK are large and import much else (`ssl`, `socket`): loading them while the
application is still importing would slow its start, could meet it half-way through a circular import, and
would come before the application could patch those modules (gevent). So they are loaded when nobody has
imported anything for a moment. A fork waits for that as long as it gets on: in a child, a module that the exporting
thread was importing would stay locked for ever. Imports the model and `system` only.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from typing import Generic

from splunk_profiler.model import Batch, ExportResult, ExportStatus, Record, Sink
from splunk_profiler.system import import_locks as imports
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import Activity, Signal, living_threads, patch_pending, threads_are_greenlets

_PATIENCE_S = 10.0
_DESCRIPTION_S = 5.0
_QUIET_S = 0.3
_LOOK_AGAIN_S = 0.05
_FORK_LOOK_AGAIN_S = 0.005
_POOLS = "concurrent.futures.thread"


class LazySink(Generic[Record]):
    """Opens its sink before the first batch is sent.

    Args:
        open_sink: makes the real one; called once, on the exporting thread.
        is_described: whether it is known which service sends; asked once the sink is made.
        load: imports all that this takes; called before. No fork comes in the middle of it.
        detect: finds out what else it takes, perhaps over the network; called in between. A fork waits for no more
            than what it imports.
    """

    def __init__(
        self,
        open_sink: Callable[[], Sink[Record]],
        is_described: Callable[[], bool] = lambda: True,
        *,
        load: Callable[[], object] = lambda: None,
        detect: Callable[[], object] = lambda: None,
    ) -> None:
        self._open_sink = open_sink
        self._is_described = is_described
        self._load, self._detect = load, detect
        self._sink: Sink[Record] | None = None
        self._maker: Activity | None = None  # of the thread that makes it, while it does
        self._loading = False  # set before `_forks` is looked at, and looked at after that was added to
        self._forks: list[int] = []  # idents of the threads between `hold_for_fork` and `release_after_fork`
        self._at_fork: set[int] = set()  # threads that a fork has left behind, of which a child knows none
        self._forked = Signal()
        self._before_detecting: frozenset[int] | None = None  # idents of threads
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
            if imports.is_under_way() or patch_pending():
                quiet_since = now
            if now - quiet_since >= _QUIET_S or now - began >= _PATIENCE_S:
                break
            self._hurry.wait(_LOOK_AGAIN_S)
        else:
            return  # the process ends: what there is to send decides whether the sink is needed
        self._make()
        while not self._ending() and time.monotonic() - began < _DESCRIPTION_S and not self._described():
            self._hurry.wait(_LOOK_AGAIN_S)

    def export(self, batch: Batch[Record]) -> ExportResult:
        """See `Sink.export`."""
        if self._sink is None:
            self._make()
        if self._sink is None:
            return ExportResult(ExportStatus.REJECTED, self._broken)
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

    def hold_for_fork(self) -> None:
        """Wait until nothing is imported here and let nothing be until `release_after_fork`; as long as that gets on.

        If it waits for the calling thread, which is importing itself, it cannot.
        """
        own = _thread.get_ident()
        had_pools = imports.is_loaded(_POOLS)
        self._forks.append(own)
        others: dict[int, Activity] = {}
        while (maker := self._maker) is not None and self._imports(maker, own):
            for thread in living_threads().copy().values():
                if thread.ident in self._importing() - {maker.ident, *others}:
                    others[thread.ident] = Activity(thread)
            stand_still = [one.stands_still() for one in (maker, *others.values())]
            if all(stand_still) or any(imports.waits_for(one, own) for one in self._importing()):
                break
            Signal().wait(_FORK_LOOK_AGAIN_S)
        self._at_fork = self._importing() - {own}
        if not had_pools and imports.is_loaded(_POOLS):
            # Its hook before the fork came too late for this one, and that after the fork releases what it would take.
            sys.modules[_POOLS]._global_shutdown_lock.acquire(blocking=False)

    def release_after_fork(self) -> None:
        """Go on after `hold_for_fork`, in the parent; does nothing on a thread that does not hold."""
        own = _thread.get_ident()
        if own in self._forks:
            self._forks.remove(own)
            self._forked.set()

    def abandon(self) -> bool:
        """In a forked child: have modules imported anew that were being imported here. False if much is half-done."""
        maker, self._maker = self._maker, None
        if maker is None or maker.ident == _thread.get_ident():
            return True
        imports.abandon({maker.ident, *self._importing(), *self._at_fork})
        return not self._loading

    def _imports(self, maker: Activity, own: int) -> bool:
        if maker.ident == own:
            return False  # it forks itself, and is there in the child
        return self._loading or bool(imports.held_by(self._importing() - {own}))

    def _importing(self) -> set[int]:
        """Threads that may import for us: who makes the sink, and those that detectors run on."""
        maker, before = self._maker, self._before_detecting
        threads = set() if maker is None else {maker.ident}
        if before is not None and not threads_are_greenlets():
            threads |= living_threads().copy().keys() - before
        return threads

    def _described(self) -> bool:
        try:
            return self._is_described()
        except Exception:
            logger.debug("the service's description cannot be read", exc_info=True)
            return True

    def _ending(self) -> bool:
        return self._closed or self._hurried_s is not None

    def _make(self) -> None:
        if self._sink is not None or self._broken:
            return
        self._maker = Activity()
        try:
            self._without_forks(self._load)
            self._before_detecting = frozenset(living_threads().copy())
            self._detect()
            self._without_forks(self._open)
        except Exception as error:
            self._broken = f"the exporter cannot be made: {error}"
            logger.debug("the exporter cannot be made", exc_info=True)
        finally:
            self._maker = self._before_detecting = None

    def _without_forks(self, step: Callable[[], object]) -> None:
        self._loading = True
        while self._forks:
            self._loading = False
            self._forked.wait(_LOOK_AGAIN_S)
            self._loading = True
        try:
            step()
        finally:
            self._loading = False

    def _open(self) -> None:
        sink = self._open_sink()
        if self._hurried_s is not None:
            sink.hurry(self._hurried_s)
        if self._closed:  # while it was being made
            sink.shutdown()
        self._sink = sink
