"""The exporter call that the correlator thread is in, as other threads see it.

That thread runs the application's code, which may hold locks, take long, hang or fork.
"""

from __future__ import annotations

import _thread
from math import inf
from typing import Any

from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system import clocks
from splunk_profiler.system.threads import OwnedLock, wait_until


class ForwardingError(Exception):
    """Error of an exporter that tried to end the correlator thread."""


class CurrentExport:
    """The exporter call of the correlator thread. A forked child replaces it."""

    def __init__(self) -> None:
        self.processor: WrappedProcessor | None = None
        self._lock = OwnedLock()  # held during each call, and by a forking thread
        self._thread_ident = 0
        self._count = 0  # calls that have ended
        self._stuck_count = -1  # `_count` at the last `mark_stuck`
        self._fork_timeout_count = -1  # `_count` when a fork last waited in vain
        self._fork_deadline_s = 0.0  # until when no call begins, as a fork waits for the one before

    def export(self, wrapped: WrappedProcessor, span: Any) -> None:
        """Give `span` to its exporter, on the correlator thread; `ForwardingError` if it raised what ends a thread."""
        # Between two calls the lock is free for microseconds, which a fork that looks now and then would never see.
        wait_until(lambda: clocks.monotonic() >= self._fork_deadline_s, inf)
        with self._lock:
            self._thread_ident = _thread.get_ident()
            self.processor = wrapped
            try:
                wrapped.on_end(span)
            except Exception:
                raise
            except BaseException as error:  # it is meant for a thread or task of the application
                raise ForwardingError(f"an exporter raised {type(error).__name__}") from error
            finally:
                self.processor = None
                self._count += 1

    @property
    def is_this_thread_exporting(self) -> bool:
        """True on the correlator thread inside the call: it cannot wait for itself."""
        return self.processor is not None and self._thread_ident == _thread.get_ident()

    @property
    def is_stuck(self) -> bool:
        """True while the call lasts that `mark_stuck` marked."""
        return self.processor is not None and self._count == self._stuck_count

    def mark_stuck(self) -> None:
        """Mark the current call as one that another thread waited for in vain."""
        if self.processor is not None:
            self._stuck_count = self._count

    def hold_for_fork(self, timeout_s: float) -> None:
        """Wait for the call to end and allow no other: the child would inherit its locks locked.

        Waits at most `timeout_s` seconds, and never twice for the same call.
        """
        if self.is_this_thread_exporting or (self.processor is not None and self._count == self._fork_timeout_count):
            return
        self._fork_deadline_s = clocks.monotonic() + timeout_s
        if not self._lock.acquire(timeout_s):
            self._fork_timeout_count = self._count

    def release_after_fork(self) -> None:
        """Allow calls again, in the parent."""
        self._fork_deadline_s = 0.0
        if not self.is_this_thread_exporting:
            self._lock.release()
