"""The two checks before `start` loads the profiler: that it may be on, and that no thread forks meanwhile.

Loaded with the package, so that the gate precedes every other import of ours. A process that is not profiled must not
pay for the profiler, not even for the parser of its settings.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident, get_native_id

_VARIABLES = ("SPLUNK_PROFILER_ENABLED", "SPLUNK_SNAPSHOT_PROFILER_ENABLED")
_AUTO_VARIABLES = ("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED", "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED")
_STALL_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.005

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def is_surely_off() -> bool:
    """Return True if all variables are unset or false (or auto); all else is for `config`, which also warns."""
    return all(_read_variable(name) in ("", "false") for name in _VARIABLES) and all(
        _read_variable(name) in ("", "false", "auto") for name in _AUTO_VARIABLES
    )


def _read_variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


class ForkGate:
    """A gate between a fork on one thread and a start on another: ``with gate:`` encloses each start.

    In the child, a module that the other thread was importing would stay locked for ever. A fork waits for a start as
    long as it uses the processor and 5 seconds more; a start waits for a fork for at most 5 seconds. Safe in signal
    handlers: no thread waits for itself.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._has_fork_hooks = False
        # (ident, native id) of each thread in a start, or about to be; once for each nested start.
        self._starting_threads: list[tuple[int, int]] = []
        self._admitted_threads: set[int] = set()  # idents of those that no fork keeps waiting: they import
        self._forking_threads: list[int] = []  # idents
        self._has_locked_imports = False
        self._profiler_before_fork: Callable[[], None] | None = None

    def has_locked_imports(self) -> bool:
        """Return True in a child that was forked during a start of another thread, whose modules stay locked."""
        self._detect_fork()
        return self._has_locked_imports

    def is_forking(self) -> bool:
        """Return True on a thread that is in the middle of a fork."""
        return get_ident() in self._forking_threads

    def register(
        self, before: Callable[[], None], after_in_parent: Callable[[], None], after_in_child: Callable[[], None]
    ) -> None:
        """Register the profiler's hooks. Each fork calls `before` after its wait, also a fork that waits now."""
        self._profiler_before_fork = before
        self._register_at_fork(after_in_parent, after_in_child)  # again: the last registration runs first

    def __enter__(self) -> None:
        """Begin a start, perhaps nested in another of this thread."""
        self._install_fork_hooks()
        self._detect_fork()
        own = _current_thread_ids()
        is_nested = own in self._starting_threads
        deadline_s = _now_s() + _STALL_TIMEOUT_S
        self._starting_threads.append(own)
        try:
            while not is_nested and any(ident != own[0] for ident in self._forking_threads) and _now_s() < deadline_s:
                self._starting_threads.remove(own)
                time.sleep(_POLL_INTERVAL_S)
                self._starting_threads.append(own)
            self._admitted_threads.add(own[0])
        except BaseException:  # of a signal handler
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """End a start."""
        self._forget(_current_thread_ids())

    def _before_fork(self) -> None:
        """Wait until no other thread is in a start, and let no start begin."""
        own = get_ident()
        if own in self._forking_threads:
            return  # the hook is registered twice
        self._forking_threads.append(own)
        last_used_ns: list[int] = []
        last_progress_s = 0.0
        while others := self._find_others_starting(own):
            now, used_ns = _now_s(), [_read_thread_cpu_ns(native_id) for native_id in others]
            if used_ns != last_used_ns:
                last_used_ns, last_progress_s = used_ns, now
            elif now - last_progress_s > _STALL_TIMEOUT_S:
                break
            time.sleep(_POLL_INTERVAL_S)
        if self._profiler_before_fork is not None:
            self._profiler_before_fork()

    def _find_others_starting(self, own: int) -> list[int]:
        """Return the native ids of other threads in a start; forget those that a signal handler has thrown out of it.

        A handler may raise before the first line of `__exit__`. Such a thread has no function of ours on its stack.
        """
        others = [ids for ids in self._starting_threads.copy() if ids[0] != own]
        frames = sys._current_frames() if others else {}  # takes time at each fork
        found = []
        for ids in others:
            if own not in frames or _is_in_package(frames.get(ids[0])):  # or idents are greenlets'
                found.append(ids[1])
            else:
                self._forget(ids)
        frames.clear()  # the frame of this function is in it: the cycle would keep what all threads' functions hold
        return found

    def _forget(self, ids: tuple[int, int]) -> None:
        if ids in self._starting_threads:
            self._starting_threads.remove(ids)
            if ids not in self._starting_threads:
                self._admitted_threads.discard(ids[0])

    def _after_fork_in_parent(self) -> None:
        if (own := get_ident()) in self._forking_threads:
            self._forking_threads.remove(own)

    def _detect_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._forking_threads.clear()
            ident = get_ident()
            has_lost_start = any(one[0] != ident and one[0] in self._admitted_threads for one in self._starting_threads)
            self._admitted_threads &= {ident}
            self._starting_threads = [_current_thread_ids() for one in self._starting_threads if one[0] == ident]
            if has_lost_start:
                self._has_locked_imports = True  # in its own children as well
                # The lost thread may have been in short turns. The end of others in this process ends them, too.
                turns = getattr(sys.modules.get("splunk_profiler.system.short_turns"), "ShortTurns", None)
                if turns is not None:  # else its thread was lost before it could begin them
                    with turns():
                        pass
                _log_on_own_thread(
                    "this process was forked while the profiler of its parent was starting, and is not profiled;"
                    " fork before that, or later"
                )

    def _install_fork_hooks(self) -> None:
        if self._has_fork_hooks:
            return
        # Before ours: hooks before a fork run in reverse order, and a start takes the lock that `logging` takes there.
        # Hooks in the child run in order, and ours need a `threading` that is repaired already.
        import logging  # noqa: F401, PLC0415
        import threading  # noqa: F401, PLC0415

        self._register_at_fork(self._after_fork_in_parent, self._detect_fork)
        self._has_fork_hooks = True

    def _register_at_fork(self, after_in_parent: Callable[[], None], after_in_child: Callable[[], None]) -> None:
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=after_in_parent, after_in_child=after_in_child
            )


def _now_s() -> float:
    # As in `system.clocks`, which is not loaded where nothing is started.
    return time.clock_gettime(time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime") else time.monotonic()


def _current_thread_ids() -> tuple[int, int]:
    return get_ident(), get_native_id()


def _log_on_own_thread(text: str) -> None:
    """Log a warning, on a thread of ours if that is loaded: a lock of the log's stream may be a lost thread's."""

    def log() -> None:
        sys.modules["logging"].getLogger("splunk_profiler").warning(text)

    worker = getattr(sys.modules.get("splunk_profiler.system.threads"), "Worker", None)
    if worker is None:
        log()
        return
    try:
        worker("logger", log).start()
    except RuntimeError:
        return  # the process can make no more threads


def is_in_profiler() -> bool:
    """Return True if the calling thread is in the middle of a fork, or of a function of ours but this one."""
    return FORK_GATE.is_forking() or _is_in_package(sys._getframe(1))


def _is_in_package(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "splunk_profiler":
            return True
        frame = frame.f_back
    return False


def _read_thread_cpu_ns(native_id: int) -> int:
    """Return the CPU time (ns) of a thread; 0 if it is unknown."""
    # As in `system.threads`, which must not be imported before the gate.
    try:
        return time.clock_gettime_ns((~native_id << 3) | 6) if sys.platform.startswith("linux") else 0
    except OSError:
        return 0


FORK_GATE = ForkGate()
