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

from splunk_profiler.inspector.architecture import GENERAL_SET, Architecture
from splunk_profiler.inspector.errors import AlreadyTracedError, UnsupportedError
from splunk_profiler.inspector.permissions import not_permitted

_T = TypeVar("_T")

_SEIZE, _INTERRUPT, _DETACH, _GETREGSET = 0x4206, 0x4207, 17, 0x4204
_WALL = 0x40000000
_EVENT_STOP = 128
_AT_ONCE = 8
_SPINS = 8
_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 1e-3
_PATIENCE_S = 1.0


class _Buffer(ctypes.Structure):
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
        self._registers = ctypes.create_string_buffer(architecture.register_set_bytes)
        self._general = ctypes.create_string_buffer(architecture.general_set_bytes)
        # Threads that are ours for now: None until they are seen to stand, then the signal that their stop intercepted.
        self._held: dict[int, int | None] = {}
        self._permitted = False
        # Those that had their time to stop and did not, so that nobody waits for them again.
        self._tardy: set[int] = set()

    @property
    def late(self) -> frozenset[int]:
        """Threads that were asked to stop and have not yet: they sleep inside the kernel. `settle` lets them go."""
        return frozenset(tid for tid, signal in self._held.items() if signal is None)

    def visit(self, tids: Sequence[int], look: Callable[[int], _T]) -> dict[int, _T]:
        """`look(tid)` for each thread while it stands; threads that end or cannot be stopped are left out.

        A few are asked to stop together: where more threads run than there are processors, a thread stops when it is
        given one, and those that have stopped leave theirs to the others.

        Raises:
            NotPermittedError: the kernel refuses.
            AlreadyTracedError: somebody else traces a thread.
        """
        seen: dict[int, _T] = {}
        for start in range(0, len(tids), _AT_ONCE):
            group = tids[start : start + _AT_ONCE]
            try:
                for tid in group:
                    self._ask(tid)
                for tid in group:
                    if self._await((tid,), _PATIENCE_S):
                        seen[tid] = look(tid)
                        self._let_go(tid)
                    elif tid in self._held:
                        self._tardy.add(tid)
            finally:
                self._settle(_PATIENCE_S, without=self._tardy)
                self._settle(0.0)
        return seen

    def thread_pointer(self, tid: int) -> int | None:
        """The thread pointer of a thread that stands; None if it was killed meanwhile."""
        if not self._read_registers(tid, self._architecture.register_set, self._registers):
            return None
        return self._architecture.thread_pointer(self._registers.raw)

    def instruction_pointer(self, tid: int) -> int | None:
        """Where in its code a thread that stands is; None if it was killed meanwhile."""
        if not self._read_registers(tid, GENERAL_SET, self._general):
            return None
        return self._architecture.instruction_pointer(self._general.raw)

    def settle(self, patience_s: float = 0.0) -> bool:
        """Let go of late threads that stand by now; True if there is none left."""
        self._settle(patience_s)
        return not self._held

    def _read_registers(self, tid: int, which: int, target: ctypes.Array[ctypes.c_char]) -> bool:
        wanted = _Buffer(ctypes.addressof(target), len(target))
        return bool(self._ptrace(_GETREGSET, tid, which, ctypes.addressof(wanted)) >= 0)

    def _ask(self, tid: int) -> None:
        if tid in self._held:
            return  # late since an earlier visit
        # Noted before the call, so that an exception between the two cannot leave a thread behind.
        self._held[tid] = None
        if self._ptrace(_SEIZE, tid, None, None) < 0:
            number = ctypes.get_errno()
            del self._held[tid]
            if number != errno.ESRCH:
                self._refused(tid, number)
            return
        self._permitted = True
        # A failure means that the thread is ending; the wait will say so.
        self._ptrace(_INTERRUPT, tid, None, None)

    def _refused(self, tid: int, number: int) -> None:
        status = _status(self._pid, tid)
        if status.get("State", "X")[0] in "ZX":
            return
        tracer = int(status.get("TracerPid", "0"))
        if tracer == threading.get_native_id():
            self._follow_exec()
            return
        if tracer:
            raise AlreadyTracedError(
                f"thread {tid} is already traced by process {tracer} (debugger, strace, inspector)"
            )
        if number == errno.EPERM and self._permitted:
            return  # what may be traced once may always: it was ending, or making way for one that executes a program
        if number == errno.EPERM:
            raise not_permitted(self._pid, f"stopping thread {tid} of process {self._pid} is not permitted")
        raise UnsupportedError(f"threads cannot be stopped here: ptrace: {os.strerror(number)}")

    def _await(self, tids: Sequence[int], patience_s: float) -> list[int]:
        """Those of `tids` that stand: as soon as there is one, or all have ended, or the patience has."""
        deadline = time.monotonic() + patience_s
        spins, pause_s = 0, _FIRST_PAUSE_S
        while True:
            standing = [tid for tid in tids if self._stands(tid)]
            if standing or not any(tid in self._held for tid in tids) or time.monotonic() >= deadline:
                return standing
            if spins < _SPINS:
                spins += 1
                os.sched_yield()
            else:
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                if pause_s == _LONGEST_PAUSE_S:
                    self._ask_again(tids)

    def _stands(self, tid: int) -> bool:
        if self._held.get(tid, 0) is not None:
            return tid in self._held
        try:
            # Without taking the event away: the end of a process that is our own child belongs to whoever started it.
            event = os.waitid(os.P_PID, tid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
        except ChildProcessError:
            del self._held[tid]
            self._follow_exec()
            return False
        if event is None:
            return False
        if event.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            self._ended(tid)
            return False
        # An event stop is ours (or a stop of the whole process, which detaching leaves in force). Any other is a signal
        # that arrived, which the thread must still get.
        self._held[tid] = 0 if event.si_status >> 8 == _EVENT_STOP else event.si_status & 0x7F
        return True

    def _follow_exec(self) -> None:
        """A thread that executes another program in the meantime goes on under the id of the process, still ours."""
        tracer = int(_status(self._pid, self._pid).get("TracerPid", "0"))
        if tracer == threading.get_native_id():
            self._held.setdefault(self._pid, None)

    def _ask_again(self, tids: Sequence[int]) -> None:
        """The first thread's place may be taken by one that executes a program: it did not hear us, or is not ours."""
        if self._pid in tids and self._held.get(self._pid, 0) is None:
            if _status(self._pid, self._pid).get("TracerPid") == "0":
                del self._held[self._pid]
            else:
                self._ptrace(_INTERRUPT, self._pid, None, None)

    def _let_go(self, tid: int) -> None:
        if self._ptrace(_DETACH, tid, None, self._held[tid]) < 0:
            # Only its end moves a thread that stands: that is still to be seen, or another thread came in its place.
            self._held[tid] = None
        else:
            del self._held[tid]

    def _ended(self, tid: int) -> None:
        del self._held[tid]
        if tid == self._pid and int(_status(tid, tid).get("PPid", "0")) == os.getpid():
            return
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, tid, os.WEXITED | os.WNOHANG | _WALL)

    def _settle(self, patience_s: float, without: AbstractSet[int] = frozenset()) -> None:
        """Let everything go that stands or comes to stand within `patience_s`, `without` these."""
        deadline = time.monotonic() + patience_s
        while waiting := [tid for tid in self._held if tid not in without]:
            standing = self._await(waiting, deadline - time.monotonic())
            for tid in standing:
                self._let_go(tid)
            if not standing and time.monotonic() >= deadline:
                break
        self._tardy &= self._held.keys()


def _status(pid: int, tid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/task/{tid}/status").read_text("utf-8", "replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
