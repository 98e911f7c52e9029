"""Stops threads of another process for a moment, so that what they publish stands still while it is read.

PTRACE_SEIZE and PTRACE_INTERRUPT: invisible to the process, and undone by the kernel if this one dies. Linux ties a
stopped thread to the *thread* that stopped it, so a Tracer is used by the thread that made it only. Must not import
anything of the package but the inspector's own modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeVar

from splunk_profiler.inspector.architecture import GENERAL_REGISTER_SET, Architecture
from splunk_profiler.inspector.errors import AlreadyTracedError, UnsupportedError
from splunk_profiler.inspector.permissions import not_permitted

_T = TypeVar("_T")

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH, _PTRACE_GETREGSET = 0x4206, 0x4207, 17, 0x4204
_WALL = 0x40000000
_PTRACE_EVENT_STOP = 128
_BATCH_SIZE = 8
_MAX_SPINS = 8
_MIN_PAUSE_S = 20e-6
_MAX_PAUSE_S = 1e-3
_STOP_TIMEOUT_S = 1.0


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _ptrace_function() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = ctypes.c_long
    return function


class Tracer:
    """Visits threads of process `pid` while they stand still."""

    def __init__(self, pid: int, architecture: Architecture) -> None:
        self._pid = pid
        self._architecture = architecture
        self._ptrace = _ptrace_function()
        self._register_buffer = ctypes.create_string_buffer(architecture.register_set_bytes)
        self._general_register_buffer = ctypes.create_string_buffer(architecture.general_set_bytes)
        # Threads that are ours for now: None until they are seen to stand, then the signal that their stop intercepted.
        self._attached: dict[int, int | None] = {}
        self._is_permitted = False
        # Those that had their time to stop and did not, so that nobody waits for them again.
        self._timed_out: set[int] = set()

    @property
    def pending_tids(self) -> frozenset[int]:
        """Threads that were asked to stop and have not yet.

        They sleep inside the kernel. `detach_pending` lets them go.
        """
        return frozenset(tid for tid, signal in self._attached.items() if signal is None)

    def visit(self, tids: Sequence[int], callback: Callable[[int], _T]) -> dict[int, _T]:
        """`callback(tid)` for each thread while it stands; threads that end or cannot be stopped are left out.

        A few are asked to stop together: where more threads run than there are processors, a thread stops when it is
        given one, and those that have stopped leave theirs to the others.

        Raises:
            NotPermittedError: the kernel refuses.
            AlreadyTracedError: somebody else traces a thread.
        """
        results: dict[int, _T] = {}
        for start in range(0, len(tids), _BATCH_SIZE):
            batch = tids[start : start + _BATCH_SIZE]
            try:
                for tid in batch:
                    self._request_stop(tid)
                for tid in batch:
                    if self._wait_for_stop((tid,), _STOP_TIMEOUT_S):
                        results[tid] = callback(tid)
                        self._detach(tid)
                    elif tid in self._attached:
                        self._timed_out.add(tid)
            finally:
                self._detach_stopped(_STOP_TIMEOUT_S, excluded_tids=self._timed_out)
                self._detach_stopped(0.0)
        return results

    def thread_pointer(self, tid: int) -> int | None:
        """The thread pointer of a thread that stands; None if it was killed meanwhile."""
        if not self._read_registers(tid, self._architecture.register_set, self._register_buffer):
            return None
        return self._architecture.thread_pointer(self._register_buffer.raw)

    def instruction_pointer(self, tid: int) -> int | None:
        """Where in its code a thread that stands is; None if it was killed meanwhile."""
        if not self._read_registers(tid, GENERAL_REGISTER_SET, self._general_register_buffer):
            return None
        return self._architecture.instruction_pointer(self._general_register_buffer.raw)

    def detach_pending(self, timeout_s: float = 0.0) -> bool:
        """Let go of late threads that stand by now; True if there is none left."""
        self._detach_stopped(timeout_s)
        return not self._attached

    def _read_registers(self, tid: int, set_type: int, buffer: ctypes.Array[ctypes.c_char]) -> bool:
        iovec = _IoVec(ctypes.addressof(buffer), len(buffer))
        return bool(self._ptrace(_PTRACE_GETREGSET, tid, set_type, ctypes.addressof(iovec)) >= 0)

    def _request_stop(self, tid: int) -> None:
        if tid in self._attached:
            return  # late since an earlier visit
        # Noted before the call, so that an exception between the two cannot leave a thread behind.
        self._attached[tid] = None
        if self._ptrace(_PTRACE_SEIZE, tid, None, None) < 0:
            error_number = ctypes.get_errno()
            del self._attached[tid]
            if error_number != errno.ESRCH:
                self._handle_seize_error(tid, error_number)
            return
        self._is_permitted = True
        # A failure means that the thread is ending; the wait will say so.
        self._ptrace(_PTRACE_INTERRUPT, tid, None, None)

    def _handle_seize_error(self, tid: int, error_number: int) -> None:
        status = _read_status(self._pid, tid)
        if status.get("State", "X")[0] in "ZX":
            return
        tracer_tid = int(status.get("TracerPid", "0"))
        if tracer_tid == threading.get_native_id():
            self._follow_exec()
            return
        if tracer_tid:
            raise AlreadyTracedError(
                f"thread {tid} is already traced by process {tracer_tid} (debugger, strace, inspector)"
            )
        if error_number == errno.EPERM and self._is_permitted:
            return  # what may be traced once may always: it was ending, or making way for one that executes a program
        if error_number == errno.EPERM:
            raise not_permitted(self._pid, f"stopping thread {tid} of process {self._pid} is not permitted")
        raise UnsupportedError(f"threads cannot be stopped here: ptrace: {os.strerror(error_number)}")

    def _wait_for_stop(self, tids: Sequence[int], timeout_s: float) -> list[int]:
        """Those of `tids` that stand: as soon as there is one, or all have ended, or the patience has."""
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
            # Without taking the event away: the end of a process that is our own child belongs to whoever started it.
            event = os.waitid(os.P_PID, tid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
        except ChildProcessError:
            del self._attached[tid]
            self._follow_exec()
            return False
        if event is None:
            return False
        if event.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            self._reap(tid)
            return False
        # An event stop is ours (or a stop of the whole process, which detaching leaves in force). Any other is a signal
        # that arrived, which the thread must still get.
        self._attached[tid] = 0 if event.si_status >> 8 == _PTRACE_EVENT_STOP else event.si_status & 0x7F
        return True

    def _follow_exec(self) -> None:
        """A thread that executes another program in the meantime goes on under the id of the process, still ours."""
        tracer_tid = int(_read_status(self._pid, self._pid).get("TracerPid", "0"))
        if tracer_tid == threading.get_native_id():
            self._attached.setdefault(self._pid, None)

    def _repeat_stop_request(self, tids: Sequence[int]) -> None:
        """The first thread's place may be taken by one that executes a program: it did not hear us, or is not ours."""
        if self._pid in tids and self._attached.get(self._pid, 0) is None:
            if _read_status(self._pid, self._pid).get("TracerPid") == "0":
                del self._attached[self._pid]
            else:
                self._ptrace(_PTRACE_INTERRUPT, self._pid, None, None)

    def _detach(self, tid: int) -> None:
        if self._ptrace(_PTRACE_DETACH, tid, None, self._attached[tid]) < 0:
            # Only its end moves a thread that stands: that is still to be seen, or another thread came in its place.
            self._attached[tid] = None
        else:
            del self._attached[tid]

    def _reap(self, tid: int) -> None:
        del self._attached[tid]
        if tid == self._pid and int(_read_status(tid, tid).get("PPid", "0")) == os.getpid():
            return
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, tid, os.WEXITED | os.WNOHANG | _WALL)

    def _detach_stopped(self, timeout_s: float, excluded_tids: AbstractSet[int] = frozenset()) -> None:
        """Let everything go that stands or comes to stand within `timeout_s`, `excluded_tids` these."""
        deadline = time.monotonic() + timeout_s
        while remaining := [tid for tid in self._attached if tid not in excluded_tids]:
            stopped_tids = self._wait_for_stop(remaining, deadline - time.monotonic())
            for tid in stopped_tids:
                self._detach(tid)
            if not stopped_tids and time.monotonic() >= deadline:
                break
        self._timed_out &= self._attached.keys()


def _read_status(pid: int, tid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/task/{tid}/status").read_text("utf-8", "replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
