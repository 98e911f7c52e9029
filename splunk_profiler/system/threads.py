"""Real operating-system threads, also in a process whose `threading` gevent or eventlet has replaced.

There, `threading.Thread` makes a greenlet in the application's thread, which our waiting would block. Owns the one way
in which this package starts threads and waits for them. Imports no other package of ours.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from splunk_profiler.system import clocks
from splunk_profiler.system.guard import is_interrupt

NAME_PREFIX = "splunk-profiler-"
_ASLEEP, _ON_DISK = "S", "D"  # the kernel's states of a thread that waits
_POLL_INTERVAL_S = 0.002
_MAX_START_S = 15.0  # a thread without memory may end before it can say so
_MIN_STACK_BYTES = 256 << 10
_STALL_TIMEOUTS_S = {_ASLEEP: 5.0, _ON_DISK: 60.0}


class WakeEvent:
    """An event that wakes one real thread. A wake-up without a waiter is kept for the next one.

    Implemented by a lock, which is free while a wake-up is pending. Not a `SimpleQueue`: before CPython 3.14 its `get`
    waits for ever if its timeout expires before it begins to wait, for example when it is preempted there.
    """

    def __init__(self) -> None:
        self._lock = real_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiter, or the next one; safe from any thread and from signal handlers."""
        with suppress(RuntimeError):  # free already
            self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds; return True if woken."""
        return self._lock.acquire(timeout=max(timeout_s, 0.0))


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    """Look every other millisecond, for up to `timeout_s` seconds, until `is_true()`; return False if it never was."""
    deadline_s = clocks.monotonic() + timeout_s
    while not is_true():
        if clocks.monotonic() >= deadline_s:
            return False
        WakeEvent().wait(_POLL_INTERVAL_S)
    return True


class OwnedLock:
    """A lock that belongs to the thread that acquired it, however often it did, until that thread releases it.

    A signal handler may raise right after any lock was acquired: always after `acquire` with a timeout, on CPython 3.14
    also in a ``with`` statement. Every other thread would wait for ever. Taking this lock is one operation, so the
    thread can tell that it has it; its next call goes on and frees it.
    """

    def __init__(self) -> None:
        self._owner: dict[str, int] = {}
        self._get_ident = real_get_ident()

    def acquire(self, timeout_s: float = inf) -> bool:
        """Wait up to `timeout_s` seconds; return True if the calling thread has the lock."""
        own = self._get_ident()
        return wait_until(lambda: self._owner.setdefault("ident", own) == own, timeout_s)

    def release(self) -> None:
        """Free the lock; does nothing on a thread that does not have it."""
        if self._owner.get("ident") == self._get_ident():
            self._owner.clear()

    def __enter__(self) -> None:
        """Wait for the lock."""
        self.acquire()

    def __exit__(self, *_: object) -> None:
        """Free it."""
        self.release()


class _GeventHandle:
    """A handle of a thread, for gevent's hook in a forked child."""

    @staticmethod
    def _set_done(**_: object) -> None:
        pass


class _Thread(threading.Thread):
    """A thread of ours as `threading` lists it, which has not started it. The application does not wait for it."""

    _DummyThread__ghandle = _GeventHandle

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._set_ident()  # type: ignore[attr-defined]
        self._set_native_id()  # type: ignore[attr-defined]
        if sys.version_info >= (3, 14):
            self._set_os_name()  # type: ignore[attr-defined]
        self._started.set()  # type: ignore[attr-defined]

    def is_alive(self) -> bool:
        """Return True while it is listed."""
        return self.ident is not None and active_threads().get(self.ident) is self

    def join(self, timeout: float | None = None) -> None:
        """Return at once: many programs end by waiting for all threads, and ours end later."""

    def _after_fork(self, new_ident: int | None = None) -> None:  # from CPython 3.13 on, for each listed thread
        self._started._at_fork_reinit()  # type: ignore[attr-defined]
        if new_ident is not None:  # it has forked
            self._ident = new_ident


class Worker:
    """A daemon thread named ``splunk-profiler-<role>`` that runs `body` once."""

    def __init__(self, role: str, body: Callable[[], None], *, max_start_s: float = _MAX_START_S) -> None:
        self.name = NAME_PREFIX + role
        self.ident = self.native_id = 0
        self._body = body
        self._max_start_s = max_start_s
        self._has_ended = self._is_listed = False
        self._ended = WakeEvent()
        self._started = real_lock()
        self._has_begun = real_lock()  # taken by the thread, or by a `start` that waits no more
        self._failure: BaseException | None = None  # of the steps before the body

    def start(self) -> None:
        """Start the thread; return once it runs.

        Raises:
            RuntimeError: the process can make no more threads, or this one could not be prepared.
        """
        self._started.acquire()
        try:
            with enough_stack():
                # `threading.Thread.start` would wait for its lock, and without a limit for the thread.
                start: Any = getattr(_thread, "_original_start_new_thread", real)  # of pydevd; perhaps gevent's
                (real("_thread", "start_new_thread") if hasattr(start, "__code__") else start)(self._run, ())
        except RuntimeError:
            self._has_ended = True  # there is nothing to join
            raise
        if not self._started.acquire(timeout=self._max_start_s) and self._has_begun.acquire(blocking=False):
            self._has_ended = True
            raise RuntimeError(f"the thread {self.name} has not begun within {self._max_start_s:g} s")
        if self._failure is not None:
            raise RuntimeError(f"the thread {self.name} ended before its work: {self._failure}") from self._failure

    def join(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds; return True if the thread has ended."""
        if not self._has_ended and not self._ended.wait(timeout_s):
            return False
        self._ended.set()  # for a call on another thread
        return True

    def cpu_ns(self) -> int:
        """Return the CPU time of the thread; 0 if it is unknown or the thread has ended."""
        return cpu_ns_or_zero(self.native_id)

    def _run(self) -> None:
        try:
            self._prepare()
            is_late = not self._has_begun.acquire(blocking=False)  # `start` waits no more
            self._started.release()
            if self._failure is None and not is_late:
                self._body()
        finally:
            _register_with_walker(False)
            _PROFILER_THREADS.discard((os.getpid(), self.ident))
            if self._is_listed:
                active_threads().pop(self.ident, None)
            self._has_ended = True
            self._ended.set()

    def _prepare(self) -> None:
        try:
            _block_signals()
            self.ident = real("_thread", "get_ident")()
            self.native_id = real("_thread", "get_native_id")() if sys.platform.startswith("linux") else 0
            if not threads_are_greenlets():  # unlisted, `current_thread` would wait for a lock of `threading`
                active_threads()[self.ident] = _Thread(self.name)
                self._is_listed = True
            _PROFILER_THREADS.add((os.getpid(), self.ident))
            _register_with_walker(True)
        except BaseException as error:  # raised by `start`, which waits
            self._failure = error


@contextmanager
def enough_stack() -> Iterator[None]:
    """Give threads that are started here the stack that they need, where the application has set a smaller size."""
    set_size: Callable[..., int] = real("_thread", "stack_size")
    before = set_size()  # this sets the default
    size = max(before, _MIN_STACK_BYTES) if before else 0
    try:
        set_size(size)
        yield
    finally:
        if (now := set_size(before)) != size:  # the application has set another one meanwhile
            set_size(now)


_PROFILER_THREADS: set[tuple[int, int]] = set()  # (process id, ident): a forked child has none of its parent's


def is_profiler_thread() -> bool:
    """Return True on a `Worker`, also in a finaliser or an application's callback that runs there."""
    return (os.getpid(), real("_thread", "get_ident")()) in _PROFILER_THREADS


class ThreadProgress:
    """The progress of a thread, by default the calling one, in using the processor or a disk. Known on Linux only."""

    def __init__(self, thread: threading.Thread | None = None) -> None:
        self.ident = _thread.get_ident() if thread is None else thread.ident or 0
        own_id = real("_thread", "get_native_id") if sys.platform.startswith("linux") else int
        self._native_id: int = own_id() if thread is None else thread.native_id or 0
        self._last_progress: object = None
        self._last_progress_s = 0.0

    def is_stalled(self) -> bool:
        """Return True after 5 seconds without progress, or a minute of waiting for a disk, perhaps a remote one."""
        now = clocks.monotonic()
        fields = read_proc_file(f"/proc/self/task/{self._native_id}/stat").rpartition(")")[2].split()
        progress = (cpu_ns_or_zero(self._native_id), fields[0] if fields else _ASLEEP)
        if progress != self._last_progress or progress[1] not in _STALL_TIMEOUTS_S:
            self._last_progress, self._last_progress_s = progress, now
        return now - self._last_progress_s > _STALL_TIMEOUTS_S.get(progress[1], inf)


def cpu_ns_or_zero(native_id: int) -> int:
    """Return the CPU time (ns) of a thread of this process; 0 if it is unknown or the thread has ended."""
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0
    try:
        # The kernel's id of a thread's CPU clock (MAKE_THREAD_CPUCLOCK): a dead thread is an error, not a crash.
        return time.clock_gettime_ns((~native_id << 3) | 6)
    except OSError:
        return 0


def read_proc_file(path: str | Path) -> str:
    """Return the text of a file of a process or thread; empty if it cannot be read, or has ended."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _register_with_walker(is_starting: bool) -> None:
    """Register or unregister the calling thread as ours; while ours hold the GIL, the walker delays forks by C code."""
    walker = sys.modules.get("splunk_profiler._walker")
    if walker is not None:
        walker.mark_profiler_thread(is_starting)


@contextmanager
def delaying_forks() -> Iterator[None]:
    """Keep forks from happening, by any code and at most half a second each, while a thread of ours has others' locks.

    A child inherits such a lock without the thread that releases it. Only the native walker can do this.
    """
    walker = sys.modules.get("splunk_profiler._walker") if is_profiler_thread() else None
    if walker is None:
        yield
        return
    walker.delay_forks(True)
    try:
        yield
    finally:
        walker.delay_forks(False)


def prepare_fork(is_starting: bool) -> None:
    """Wait before a fork until no thread of ours delays forks, which none does until the call with False after it."""
    walker = sys.modules.get("splunk_profiler._walker")
    if walker is not None:
        walker.prepare_fork(is_starting)


def _block_signals() -> None:
    """Block all signals on this thread and on those that gRPC starts from it, except those that report a fault.

    A signal delivered to our thread would not interrupt the system call of the application's thread it is meant for.
    """
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)


def active_threads() -> dict[int, threading.Thread]:
    """Return the table of threads that `threading` keeps by ident; a copy of it is consistent."""
    # `threading.enumerate` takes a lock that a thread of the application may hold.
    active: dict[int, threading.Thread] = vars(threading)["_active"]
    return active


def sleep_cooperatively(seconds: float) -> None:
    """Sleep on a thread of the application; under gevent or eventlet its other greenlets run meanwhile."""
    time.sleep(seconds)


def real_lock() -> _thread.LockType:
    """Return a lock that blocks the calling thread, never a greenlet."""
    lock: _thread.LockType = real("_thread", "allocate_lock")()
    return lock


def real_get_ident() -> Callable[[], int]:
    """Return the function for the ident of the real thread; gevent's and eventlet's return a greenlet's."""
    get_ident: Callable[[], int] = real("_thread", "get_ident")
    return get_ident


def threads_are_greenlets() -> bool:
    """Return True if gevent or eventlet has replaced threads; `threading` locks then exclude no real threads."""
    return real("_thread", "start_new_thread") is not _thread.start_new_thread


def is_patch_pending() -> bool:
    """Return True if gevent or eventlet is loaded and has not replaced `threading` yet, which may happen any time.

    Replacing it changes thread idents. Import locks know their owners by ident, so imports of other threads hang.
    """
    for patcher, function, module in (
        ("gevent.monkey", "is_module_patched", "threading"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
    ):
        if patcher in sys.modules:
            is_patched = _loaded(patcher, function)
            return is_patched is None or not is_patched(module)
    return False


def is_patch_possible() -> bool:
    """Return True if gevent or eventlet is installed and has not replaced `threading`."""
    return not threads_are_greenlets() and any(_is_installed(name) for name in ("gevent", "eventlet"))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except Exception as error:  # of an import hook, or of a module without a specification
        if is_interrupt(error):
            raise
        return name in sys.modules


def real(module: str, name: str) -> Any:
    """Return `module.name` as it was before gevent or eventlet replaced it, so that it blocks real threads."""
    if (get_original := _loaded("gevent.monkey", "get_original")) is not None:
        return get_original(module, name)
    if (original := _loaded("eventlet.patcher", "original")) is not None:
        return getattr(original(module), name)
    loaded = sys.modules.get(module) or import_module(module)  # lazy imports may not have loaded it yet
    return getattr(loaded, name)


def _loaded(module: str, function: str) -> Any:
    """Return a function of gevent or eventlet; None before that is loaded, when it can have replaced nothing.

    It is not imported again: if thread idents change meanwhile, the import's lock stays taken for ever.
    """
    return getattr(sys.modules.get(module), function, None)
