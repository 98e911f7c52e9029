"""Threads that hold locks for which others wait: the time that these wait, on the stack of the holder.

The native walker finds the holder (`native/walker/lock_holders.c`). This module says which instructions enter `with`
blocks, on the sampler thread. It takes no lock of the application.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition, Lock, RLock
from types import CodeType
from typing import TYPE_CHECKING, Any

from splunk_profiler.capture.events.source import PacedSource
from splunk_profiler.capture.lock_calls import lock_call
from splunk_profiler.config import Config
from splunk_profiler.model import Event, EventKind, ValueType
from splunk_profiler.raw import RawEvent
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler import _walker

LOCK_KIND = EventKind(
    "lock_held", count=ValueType("lock_waiters", "count"), amount=ValueType("lock_delay", "nanoseconds")
)

LockKinds = tuple[type, type, type, CodeType]


class LockHolderSource(PacedSource):
    """The source of threads for which others wait; each is an event with the time since it was looked for before."""

    def __init__(
        self,
        ticker: _walker.Ticker[Any, Any],
        kinds: LockKinds,
        monotonic_ns: Callable[[], int] = clocks.monotonic_ns,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        super().__init__(0, monotonic_ns, cpu_ns)
        self._ticker = ticker
        self._kinds = kinds

    def start(self) -> None:
        """Start recording, if the walker reads locks right here."""
        super().start()
        self._is_recording = reads_locks(self._ticker, self._kinds)
        if not self._is_recording:
            logger.warning("lock holders are not sampled: built for another CPython release; reinstall")

    def _look(self, since_ns: int) -> Sequence[RawEvent]:
        places = [place for place in self._ticker.entered_places() if lock_call(*place) == "with"]
        if not places:
            return ()
        holders = self._ticker.capture_lock_holders(places, self._kinds)
        time_ns = time.time_ns()
        return [
            RawEvent(time_ns, thread, Event(LOCK_KIND, (), waiting, waiting * since_ns)) for thread, waiting in holders
        ]


def make_lock_holder_source(_config: Config, ticker: Any, native: bool) -> LockHolderSource | None:
    """Return the source; None without the native walker, and on CPython 3.10, whose frames do not tell."""
    kinds = lock_kinds()
    if not native or kinds is None or sys.version_info < (3, 11):
        return None
    return LockHolderSource(ticker, kinds)


def lock_kinds() -> LockKinds | None:
    """Return what tells the locks of `threading`: their types, and the code of what releases one inside its block.

    None where another library (gevent) has put its own in their places.
    """
    lock, rlock, wait_code = type(Lock()), type(RLock()), getattr(Condition.wait, "__code__", None)
    if (lock.__module__, rlock.__module__) != ("_thread", "_thread") or not isinstance(wait_code, CodeType):
        return None
    return lock, rlock, Condition, wait_code


def reads_locks(ticker: _walker.Ticker[Any, Any], kinds: LockKinds) -> bool:
    """Return True if the walker finds what a frame has entered, or enters, as a trial on the calling thread shows."""
    lock, rlock, found = Lock(), RLock(), []
    entered: Any = type("Entered", (), {"__exit__": lambda *_: None})()
    type(entered).__enter__ = staticmethod(partial(ticker.reads_locks, entered, kinds))  # called by this frame's `with`
    with entered as is_right:
        found.append(is_right)
    with lock:
        found.append(ticker.reads_locks(lock, kinds))
        with rlock:
            found.append(ticker.reads_locks(rlock, kinds))
    return all(found)
