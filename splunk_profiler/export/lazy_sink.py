"""A sink that is opened late, in a process of the application.

gRPC and the OpenTelemetry SDK are large and import `ssl` and `socket`. Loading them while the
application imports would slow its start and could enter a circular import half-way. It could also
come before gevent patches those modules. They are loaded at the start if neither can be (`load`),
else on the exporting thread once no thread has imported for a moment.
A fork waits for that while it makes progress: in a child, the lock of a module that the exporting
thread was importing would never be released. Imports `samples` and `system` only.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable

from splunk_profiler.export.deferred_sink import DeferredSink
from splunk_profiler.samples import Record, Sink
from splunk_profiler.system import clocks, import_locks
from splunk_profiler.system.guard import is_interrupt, logger
from splunk_profiler.system.short_turns import ShortTurns
from splunk_profiler.system.threads import (
    ThreadProgress,
    WakeEvent,
    active_threads,
    is_patch_pending,
    is_patch_possible,
    threads_are_greenlets,
)

_MAX_IMPORT_WAIT_S = 4.0  # without export for 5 s in all, or longer where the processors are kept busy
_IMPORT_QUIET_S = 0.3
_POLL_INTERVAL_S = 0.05
_FORK_POLL_INTERVAL_S = 0.005
_THREAD_POOL_MODULE = "concurrent.futures.thread"


class LazySink(DeferredSink[Record]):
    """A sink that opens the real sink late, and not while the process forks.

    Args:
        open_sink, is_service_known, clock: see `DeferredSink`.
        load: imports the modules of the sink; called first. No fork happens during it.
        detect: runs resource detectors, perhaps over the network, after `load`. A fork waits only for its imports.
    """

    def __init__(
        self,
        open_sink: Callable[[], Sink[Record]],
        is_service_known: Callable[[], bool] | None = None,
        *,
        load: Callable[[], object] | None = None,
        detect: Callable[[], object] | None = None,
        clock: Callable[[], float] = clocks.monotonic,
    ) -> None:
        super().__init__(open_sink, is_service_known, clock=clock)
        self._load, self._detect = load, detect
        self._opener: ThreadProgress | None = None  # of the thread that opens the sink
        self._turns = ShortTurns()
        self._is_loading = False  # set before `_forking_idents` is read; read after it is added to
        self._forking_idents: list[int] = []  # threads between `hold_for_fork` and `release_after_fork`
        self._importing_at_fork: set[int] = set()  # threads that do not exist in the child
        self._fork_finished = WakeEvent()
        self._idents_before_detect: frozenset[int] | None = None  # threads

    def load(self) -> None:
        """Import the modules of the sink on the calling thread, unless it or another one imports, or gevent may come.

        Raises nothing of its own: what fails is tried again, and reported, by the exporting thread.
        """
        if self._load is None or import_locks.is_importing() or is_patch_possible():
            return
        self._opener = ThreadProgress()
        try:
            self._run_between_forks(self._load_in_short_turns)
        except Exception as error:
            if is_interrupt(error):
                raise
            logger.debug("the exporter cannot be loaded at the start", exc_info=True)
        finally:
            self._opener = None

    def _wait_to_open(self) -> None:
        """Wait until no thread imports, at most 4 seconds."""
        last_import_s = start_s = clocks.monotonic()
        while not self._is_shutting_down():
            now = clocks.monotonic()
            if import_locks.is_importing() or is_patch_pending():
                last_import_s = now
            if now - last_import_s >= _IMPORT_QUIET_S or now - start_s >= _MAX_IMPORT_WAIT_S:
                break
            self._shutdown_begun.wait(_POLL_INTERVAL_S)

    def hold_for_fork(self, _timeout_s: float, /) -> None:
        """Wait for our imports and prevent new ones until `release_after_fork`.

        Whatever the timeout, the wait ends when the imports make no progress, or wait for the calling thread.
        """
        own_ident = _thread.get_ident()
        had_thread_pools = import_locks.is_loaded(_THREAD_POOL_MODULE)
        self._forking_idents.append(own_ident)
        others: dict[int, ThreadProgress] = {}
        while (opener := self._opener) is not None and self._is_importing(opener, own_ident):
            for thread in active_threads().copy().values():
                if thread.ident in self._importing_idents() - {opener.ident, *others}:
                    others[thread.ident] = ThreadProgress(thread)
            are_stalled = [one.is_stalled() for one in (opener, *others.values())]
            if all(are_stalled) or any(import_locks.is_waiting_for(one, own_ident) for one in self._importing_idents()):
                break
            WakeEvent().wait(_FORK_POLL_INTERVAL_S)
        self._importing_at_fork = self._importing_idents() - {own_ident}
        if not had_thread_pools and import_locks.is_loaded(_THREAD_POOL_MODULE):
            # Its hook before this fork was registered too late; the hook after the fork releases this lock.
            sys.modules[_THREAD_POOL_MODULE]._global_shutdown_lock.acquire(blocking=False)

    def release_after_fork(self) -> None:
        """Allow imports again, in the parent; does nothing on a thread that does not hold."""
        own_ident = _thread.get_ident()
        if own_ident in self._forking_idents:
            self._forking_idents.remove(own_ident)
            self._fork_finished.set()

    def abandon(self) -> bool:
        """Discard unfinished imports in a forked child; return False if they cannot be repeated."""
        opener, self._opener = self._opener, None
        self._turns.end()  # if the parent was loading
        if opener is None or opener.ident == _thread.get_ident():
            return True
        import_locks.abandon({opener.ident, *self._importing_idents(), *self._importing_at_fork})
        return not self._is_loading

    def _is_importing(self, opener: ThreadProgress, own_ident: int) -> bool:
        if opener.ident == own_ident:
            return False  # the opener forks, so it exists in the child
        return self._is_loading or bool(import_locks.modules_held_by(self._importing_idents() - {own_ident}))

    def _importing_idents(self) -> set[int]:
        """Return the threads that may import for us: the opener and those of the detectors."""
        opener, idents_before = self._opener, self._idents_before_detect
        threads = set() if opener is None else {opener.ident}
        if idents_before is not None and not threads_are_greenlets():
            threads |= active_threads().copy().keys() - idents_before
        return threads

    def _open_steps(self) -> None:
        self._opener = ThreadProgress()
        try:
            self._run_between_forks(self._load_in_short_turns)
            self._idents_before_detect = frozenset(active_threads().copy())
            if self._detect is not None:
                self._detect()
            self._run_between_forks(super()._open_steps)
        finally:
            self._opener = self._idents_before_detect = None

    def _run_between_forks(self, step: Callable[[], object]) -> None:
        self._is_loading = True
        while self._forking_idents:
            self._is_loading = False
            self._fork_finished.wait(_POLL_INTERVAL_S)
            self._is_loading = True
        try:
            step()
        finally:
            self._is_loading = False

    def _load_in_short_turns(self) -> None:
        """Import the modules of the sink. To open it may wait for a network, and takes the usual turns."""
        if self._load is not None:
            with self._turns:
                self._load()
