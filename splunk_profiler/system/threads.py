"""Real operating-system threads, also in a process whose `threading` gevent or eventlet has replaced.

There, `threading.Thread` makes a greenlet in the application's own thread: our waiting would stop the
application. Owns the one way in which this package starts a thread and waits for one. Imports nothing of ours.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

NAME_PREFIX = "splunk-profiler-"
_ASLEEP, _ON_DISK = "S", "D"  # the kernel's words for a thread that waits
_THREADING_LOCK_TIMEOUT_S, _POLL_INTERVAL_S = 0.1, 0.002
_STALL_TIMEOUTS_S = {_ASLEEP: 5.0, _ON_DISK: 60.0}


class WakeEvent:
    """Wakes one waiting thread. Real in every process; a wake-up while nobody waits is not lost.

    A lock, which is free while somebody is to be woken. Not a `SimpleQueue`: before CPython 3.14 its `get` waits for
    ever if its time is over before it begins to wait, as it is when the processor is taken from it there.
    """

    def __init__(self) -> None:
        self._lock = real_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiter, or the next one; safe from any thread and from signal handlers."""
        with suppress(RuntimeError):  # it is free already
            self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """True if woken within `timeout_s` seconds."""
        return self._lock.acquire(timeout=max(timeout_s, 0.0))


class _Thread(threading.Thread):
    """Ends without a complaint where gevent has replaced the idents of threads since it began."""

    def _delete(self) -> None:
        try:
            super()._delete()  # type: ignore[misc]
        except KeyError:
            active = active_threads()
            for ident in [ident for ident, thread in active.copy().items() if thread is self]:
                active.pop(ident, None)


class Worker:
    """A daemon thread that runs `body` once. Started by `start`, which names it ``splunk-profiler-<role>``."""

    def __init__(self, role: str, body: Callable[[], None]) -> None:
        self.name = NAME_PREFIX + role
        self.ident = self.native_id = 0
        self._body = body
        self._ended = WakeEvent()
        self._started = real_lock()
        self._failure: BaseException | None = None  # of what comes before the body
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it; returns once it runs.

        Raises:
            RuntimeError: the process can make no more threads, or this one could not be prepared.
        """
        self._started.acquire()
        if threads_are_greenlets() or not _may_use_threading():
            _original("_thread", "start_new_thread")(self._run_without_threading, ())
        else:
            self._thread = _Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self._started.acquire()
        if self._failure is not None:
            raise RuntimeError(f"the thread {self.name} ended before its work: {self._failure}") from self._failure

    def join(self, timeout_s: float) -> bool:
        """True if the thread has ended within `timeout_s` seconds."""
        if not self._ended.wait(timeout_s):
            return False
        self._ended.set()  # for the next who asks
        if self._thread is not None:
            self._thread.join(timeout_s)  # its last steps, so that nobody counts a thread that is about to be gone
        return True

    def cpu_ns(self) -> int:
        """CPU time that the thread has used; 0 if that is not known, or it has ended."""
        return cpu_ns_or_zero(self.native_id)

    def _run(self) -> None:
        try:
            self._prepare()
            self._started.release()
            if self._failure is None:
                self._body()
        finally:
            _register_with_walker(False)
            _PROFILER_THREADS.discard((os.getpid(), self.ident))
            self._ended.set()

    def _run_without_threading(self) -> None:
        """Run on a thread that `threading` has not made: who asks it for the current thread would wait for its lock."""
        ident = _original("_thread", "get_ident")()
        known = None if threads_are_greenlets() else threading.Thread(name=self.name, daemon=True)
        if known is not None:
            known._set_ident()  # type: ignore[attr-defined]
            known._started.set()  # type: ignore[attr-defined]
            active_threads()[ident] = known
        try:
            self._run()
        finally:
            if known is not None:
                active_threads().pop(ident, None)

    def _prepare(self) -> None:
        try:
            _block_signals()
            self.ident = _original("_thread", "get_ident")()
            self.native_id = _original("_thread", "get_native_id")() if sys.platform.startswith("linux") else 0
            _PROFILER_THREADS.add((os.getpid(), self.ident))
            _register_with_walker(True)
        except BaseException as error:  # is the starter's to hear of, who waits
            self._failure = error


def _may_use_threading() -> bool:
    """Return True if a new `threading.Thread` would start: it waits for the lock of other functions of `threading`.

    It waits for ever if the caller is a signal handler or finaliser in the middle of such a function, or if this is a
    child that C code has forked while a thread was in one.
    """
    lock = vars(threading).get("_active_limbo_lock")
    deadline_s = time.monotonic() + _THREADING_LOCK_TIMEOUT_S
    while lock is not None and not repr(lock).startswith("<unlocked"):  # taken, a handler that raises could keep it
        if lock._is_owned() or time.monotonic() > deadline_s:
            return False
        WakeEvent().wait(_POLL_INTERVAL_S)
    return True


_PROFILER_THREADS: set[tuple[int, int]] = set()  # process and ident; a forked child has none of its parent's


def is_profiler_thread() -> bool:
    """Whether a `Worker` calls, perhaps from a finaliser or a callback of the application."""
    return (os.getpid(), _original("_thread", "get_ident")()) in _PROFILER_THREADS


class ThreadProgress:
    """Progress of the thread that makes it: it uses the processor, or a disk. Known on Linux only.

    Args:
        thread: another one than the caller.

    Attributes:
        ident: the thread's, as the import system knows it.
    """

    def __init__(self, thread: threading.Thread | None = None) -> None:
        self.ident = _thread.get_ident() if thread is None else thread.ident or 0
        own_id = _original("_thread", "get_native_id") if sys.platform.startswith("linux") else int
        self._native_id: int = own_id() if thread is None else thread.native_id or 0
        self._last_progress: object = None
        self._last_progress_s = 0.0

    def is_stalled(self) -> bool:
        """Return True after 5 seconds without progress, or a minute on a disk, which may be a dead server's."""
        now = time.monotonic()
        try:
            cpu_ns = read_cpu_ns(self._native_id) if self._native_id else 0
            state = Path(f"/proc/self/task/{self._native_id}/stat").read_text("ascii", "replace").rpartition(")")[2]
            progress = (cpu_ns, state.split()[0])
        except OSError:
            progress = (0, _ASLEEP)
        if progress != self._last_progress or progress[1] not in _STALL_TIMEOUTS_S:
            self._last_progress, self._last_progress_s = progress, now
        return now - self._last_progress_s > _STALL_TIMEOUTS_S.get(progress[1], inf)


def read_cpu_ns(native_id: int) -> int:
    """CPU time that a thread of this process has used. Linux only.

    Raises:
        OSError: it has ended.
    """
    # The kernel's id of a thread's CPU clock (MAKE_THREAD_CPUCLOCK): a dead thread is an error, not a crash.
    return time.clock_gettime_ns((~native_id << 3) | 6)


def cpu_ns_or_zero(native_id: int) -> int:
    """CPU time that a thread of this process has used; 0 if that is not known, or it has ended."""
    try:
        return read_cpu_ns(native_id) if native_id > 0 and sys.platform.startswith("linux") else 0
    except OSError:
        return 0


def _register_with_walker(is_starting: bool) -> None:
    """Say that the calling thread is one of ours, or ends: C code may fork without the GIL when none of ours has it."""
    walker = sys.modules.get("splunk_profiler._walker")
    if walker is not None:
        walker.mark_profiler_thread(is_starting)


def _block_signals() -> None:
    """Block all signals on this thread, and on those that gRPC starts from it.

    A signal that is delivered to a thread of ours does not interrupt the system call in which the thread waits that
    the application meant. Those that report a fault of the thread itself cannot wait, and are left alone.
    """
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)


def active_threads() -> dict[int, threading.Thread]:
    """The threads that `threading` knows, by ident: its own table, of which a copy is whole."""
    # `threading.enumerate` takes a lock that a thread of the application may hold.
    active: dict[int, threading.Thread] = vars(threading)["_active"]
    return active


def yield_gil() -> None:
    """Offer the GIL to threads that wait for it: long work of ours is done in slices of less than a millisecond."""
    _original("time", "sleep")(0)


def sleep_cooperatively(seconds: float) -> None:
    """Sleep as the application would: where its threads are greenlets the others run meanwhile. On its threads only."""
    time.sleep(seconds)


def real_lock() -> _thread.LockType:
    """A lock that makes the calling thread wait, never the greenlets of an event loop in its stead."""
    lock: _thread.LockType = _original("_thread", "allocate_lock")()
    return lock


def real(module: str, name: str) -> Any:
    """`module.name` as it was before gevent or eventlet replaced it: what blocks there blocks only its own thread."""
    return _original(module, name)


def real_get_ident() -> Callable[[], int]:
    """The function that says which real thread calls it; gevent's and eventlet's tell greenlets apart."""
    get_ident: Callable[[], int] = _original("_thread", "get_ident")
    return get_ident


def threads_are_greenlets() -> bool:
    """Whether gevent or eventlet has replaced threads: a lock of `threading` is then none between real threads."""
    return _original("_thread", "start_new_thread") is not _thread.start_new_thread


def is_patch_pending() -> bool:
    """Whether gevent or eventlet is loaded and has not replaced `threading` yet, which it may do at any moment.

    An import that is under way in another thread then does not end: its locks know a thread by its ident, and
    that changes.
    """
    if "gevent.monkey" in sys.modules:
        return not import_module("gevent.monkey").is_module_patched("threading")
    if "eventlet.patcher" in sys.modules:
        return not import_module("eventlet.patcher").is_monkey_patched("thread")
    return False


def _original(module: str, name: str) -> Any:
    """`module.name` as it was before gevent or eventlet replaced it."""
    if "gevent.monkey" in sys.modules:
        return import_module("gevent.monkey").get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(import_module("eventlet.patcher").original(module), name)
    return getattr(sys.modules[module], name)
