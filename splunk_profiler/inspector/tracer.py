"""Short stops of another process's threads, so that published memory is stable during a read.

PTRACE_SEIZE and PTRACE_INTERRUPT are invisible to the process. The kernel undoes them if this one dies.
Linux ties a stopped thread to the *thread* that stopped it. Only the thread that made a Tracer uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from splunk_profiler.inspector.architecture import Register
from splunk_profiler.inspector.errors import AlreadyTracedError, UnsupportedError
from splunk_profiler.inspector.memory import IoVec
from splunk_profiler.inspector.proc_files import not_permitted, read_status

_T = TypeVar("_T")

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH, _PTRACE_GETREGSET = 0x4206, 0x4207, 17, 0x4204
_WALL = 0x40000000
_PTRACE_EVENT_STOP = 128
_SEIZE_ATTEMPTS = 50  # another tracer may let go of the thread between a refusal and the look at it, each time
_BATCH_SIZE = 8
_MAX_SPINS = 8
_MIN_PAUSE_S = 20e-6
_MAX_PAUSE_S = 1e-3
_STOP_TIMEOUT_S = 1.0


def _ptrace_function() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = ctypes.c_long
    return function


@contextlib.contextmanager
def _suspension_blocked() -> Iterator[None]:
    """Put off Ctrl-Z (SIGTSTP): threads that it finds stopped would stay so until this process goes on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Tracer:
    """A tracer of process `pid` that visits threads while they are stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ptrace = _ptrace_function()
        # Attached threads: None until the stop is seen, then the signal that the stop intercepted.
        self._attached: dict[int, int | None] = {}
        self._is_permitted = False
        # Threads that did not stop in time; the cleanup of `visit` does not wait for them again.
        self._timed_out: set[int] = set()

    @property
    def pending_tids(self) -> frozenset[int]:
        """Threads that have not stopped yet because they sleep in the kernel; see `detach_pending`."""
        return frozenset(tid for tid, number in self._attached.items() if number is None)

    @_suspension_blocked()
    def visit(self, tids: Sequence[int], callback: Callable[[int], _T]) -> dict[int, _T]:
        """Return `callback(tid)` of each stopped thread, without threads that end or do not stop.

        Stop requests go out in small batches. A thread needs a processor to stop, and stopped threads
        leave theirs to the others. Each thread is released as soon as it is visited.

        Raises:
            NotPermittedError: the kernel refuses.
            AlreadyTracedError: another tracer holds a thread.
        """
        results: dict[int, _T] = {}
        distinct = [*dict.fromkeys(tids)]  # the kernel lists one twice that takes over the process id in an exec
        for start in range(0, len(distinct), _BATCH_SIZE):
            batch = distinct[start : start + _BATCH_SIZE]
            try:
                for tid in batch:
                    self._request_stop(tid)
                deadline = time.monotonic() + _STOP_TIMEOUT_S
                remaining = batch
                while stopped_tids := self._wait_for_stop(remaining, deadline - time.monotonic()):
                    for tid in stopped_tids:
                        results[tid] = callback(tid)
                        self._detach(tid)
                    remaining = [tid for tid in remaining if tid not in stopped_tids]
                self._timed_out.update(tid for tid in remaining if tid in self._attached)
            finally:
                self._detach_stopped(_STOP_TIMEOUT_S, excluded_tids=self._timed_out)
                self._detach_stopped(0.0)
        return results

    def read_register(self, tid: int, register: Register) -> int | None:
        """Return the value of `register` in a stopped thread; None if it was killed meanwhile."""
        buffer = ctypes.create_string_buffer(register.offset + 8)
        iovec = IoVec(ctypes.addressof(buffer), len(buffer))
        if self._ptrace(_PTRACE_GETREGSET, tid, register.register_set, ctypes.addressof(iovec)) < 0:
            return None
        return int.from_bytes(buffer.raw[register.offset :], "little")

    def detach_pending(self, timeout_s: float = 0.0) -> bool:
        """Release threads that stopped late; return True if none are left."""
        self._detach_stopped(timeout_s)
        return not self._attached

    def _request_stop(self, tid: int) -> None:
        if tid in self._attached:
            return  # pending since an earlier visit
        for _ in range(_SEIZE_ATTEMPTS):
            # The entry comes first, so that an exception after the call leaves no thread stopped.
            self._attached[tid] = None
            if self._ptrace(_PTRACE_SEIZE, tid, None, None) == 0:
                self._is_permitted = True
                # A failure means that the thread is ending, which the wait finds.
                self._ptrace(_PTRACE_INTERRUPT, tid, None, None)
                return
            error_number = ctypes.get_errno()
            del self._attached[tid]
            if error_number == errno.ESRCH or not self._may_be_permitted(tid, error_number):
                return
        raise not_permitted(self._pid, f"stopping thread {tid} of process {self._pid} is not permitted")

    def _may_be_permitted(self, tid: int, error_number: int) -> bool:
        """Return True if no tracer has the thread, or not any more since we were refused; False if it is not read."""
        status = self._status(tid)
        if status.get("State", "X")[0] in "ZX":
            return False
        tracer_tid = int(status.get("TracerPid", "0"))
        if tracer_tid == threading.get_native_id():
            self._attach_after_exec()
            return False
        if tracer_tid:
            raise AlreadyTracedError(
                f"thread {tid} is already traced by process {tracer_tid} (debugger, strace, inspector)"
            )
        if error_number == errno.EPERM:
            return not self._is_permitted  # if it was before, the thread was ending or making way for an exec
        raise UnsupportedError(f"threads cannot be stopped here: ptrace: {os.strerror(error_number)}")

    def _wait_for_stop(self, tids: Sequence[int], timeout_s: float) -> list[int]:
        """Wait until one has stopped, all have ended, or time is up; return the stopped ones."""
        deadline = time.monotonic() + timeout_s
        spins, pause_s = 0, _MIN_PAUSE_S
        while True:
            stopped_tids = [tid for tid in tids if self._is_stopped(tid)]
            if stopped_tids or not any(tid in self._attached for tid in tids) or time.monotonic() >= deadline:
                return stopped_tids
            if spins < _MAX_SPINS:
                spins += 1
                os.sched_yield()
            else:
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
                if pause_s == _MAX_PAUSE_S:
                    self._repeat_stop_request(tids)

    def _is_stopped(self, tid: int) -> bool:
        if self._attached.get(tid, 0) is not None:
            return tid in self._attached
        try:
            # WNOWAIT keeps the event, so that the code that started a child of ours sees its end.
            event = os.waitid(os.P_PID, tid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
        except ChildProcessError:
            del self._attached[tid]
            self._attach_after_exec()
            return False
        if event is None:
            return False
        if event.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            self._reap(tid)
            return False
        # An event stop is ours, or a stop of the whole process, which detaching keeps.
        # Any other stop is the arrival of a signal, which detaching must deliver.
        self._attached[tid] = 0 if event.si_status >> 8 == _PTRACE_EVENT_STOP else event.si_status & 0x7F
        return True

    def _attach_after_exec(self) -> None:
        """Attach the process id if we trace it: a thread that executes a program takes it over."""
        if int(self._status(self._pid).get("TracerPid", "0")) == threading.get_native_id():
            self._attached.setdefault(self._pid, None)

    def _repeat_stop_request(self, tids: Sequence[int]) -> None:
        """Repeat the request to the first thread; forget it if an exec replaced the thread."""
        if self._pid in tids and self._attached.get(self._pid, 0) is None:
            if self._status(self._pid).get("TracerPid") == "0":
                del self._attached[self._pid]
            else:
                self._ptrace(_PTRACE_INTERRUPT, self._pid, None, None)

    def _detach(self, tid: int) -> None:
        if self._ptrace(_PTRACE_DETACH, tid, None, self._attached[tid]) < 0:
            # The thread was killed, which a wait will report, or an exec replaced it.
            self._attached[tid] = None
        else:
            del self._attached[tid]

    def _reap(self, tid: int) -> None:
        del self._attached[tid]
        if tid == self._pid and int(self._status(tid).get("PPid", "0")) == os.getpid():
            return  # the code that started this child of ours must see its end
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, tid, os.WEXITED | os.WNOHANG | _WALL)

    def _detach_stopped(self, timeout_s: float, excluded_tids: Collection[int] = frozenset()) -> None:
        """Release the attached threads that stop within `timeout_s`, except `excluded_tids`."""
        deadline = time.monotonic() + timeout_s
        while remaining := [tid for tid in self._attached if tid not in excluded_tids]:
            stopped_tids = self._wait_for_stop(remaining, deadline - time.monotonic())
            for tid in stopped_tids:
                self._detach(tid)
            if not stopped_tids and time.monotonic() >= deadline:
                break
        self._timed_out &= self._attached.keys()

    def _status(self, tid: int) -> dict[str, str]:
        return read_status(Path(f"/proc/{self._pid}/task/{tid}"))
