"""What is remembered of a thread, and what Python and the system say of it: its names and when it was born.

Runs on the sampling worker's thread. Imports the model, `thread_times` and `system`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.model import Thread
from splunk_profiler.pipeline.thread_times import StartTime
from splunk_profiler.system.threads import active_threads


@dataclass(slots=True)
class ThreadInfo:
    """What is remembered of a thread from one snapshot to the next; `cpu_ns` as of the last one of all threads.

    `python_thread` is the `threading.Thread`; None: there is none, or none was seen yet.
    """

    thread: Thread
    start_time: StartTime | None  # on the boot-time clock; None if not known
    cpu_ns: int
    is_sampled: bool = False  # when it was told last
    python_thread: threading.Thread | None = None

    @property
    def usage_key(self) -> int:
        """Its number in the accounts."""
        return self.thread.native_id or -self.thread.index

    def age_ns(self, at_ns: int) -> int:
        """How long it had lived at an instant on the boot-time clock; 0 if not known."""
        return 0 if self.start_time is None else max(at_ns - self.start_time.earliest_ns, 1)

    def update_name(self, python_thread: threading.Thread | None) -> None:
        """Take over the name that it has now; `python_thread` where the walker has seen it."""
        self.python_thread = python_thread or self.python_thread
        name = "" if self.python_thread is None else name_of(self.python_thread)
        if name and name != self.thread.name:
            self.thread = Thread(self.thread.index, name, self.thread.ident, self.thread.native_id)


def make_thread_info(
    ident: int, native_id: int, python_thread: threading.Thread | None, index: int, captured_boottime_ns: int
) -> ThreadInfo:
    """A thread that is seen for the first time, and may have ended by now. Its ids may then be another one's.

    Args:
        ident, native_id: what the walker says; the latter may be 0.
        python_thread: what the walker says, or None.
        index: see `Thread`.
        captured_boottime_ns: when it was seen, on the boot-time clock.
    """
    known = python_thread or _find_python_thread(ident, native_id)
    start_time = _read_start_time(native_id)
    is_another = start_time is not None and start_time.earliest_ns > captured_boottime_ns
    name = name_of(known) if known is not None else ""
    if not name and not is_another:
        name = _read_os_thread_name(native_id)
    thread = Thread(index, name or f"Thread-{ident:#x}", ident, native_id)
    return ThreadInfo(thread, None if is_another else start_time, 0, python_thread=known)


def _find_python_thread(ident: int, native_id: int) -> threading.Thread | None:
    """The thread as `threading` knows it, if that is surely the one with this native id."""
    known = active_threads().get(ident)
    return known if known is not None and native_id and vars(known).get("_native_id") == native_id else None


def name_of(thread: threading.Thread) -> str:
    """The thread's name, read past any property that a subclass of the application may have put before it."""
    name = vars(thread).get("_name")
    return name if type(name) is str else ""


def _read_os_thread_name(native_id: int) -> str:
    """The operating system's name of a thread that `threading` does not know, unless it is only the process's."""
    if native_id <= 0:
        return ""
    if native_id == os.getpid():
        return "MainThread"
    names = [_read(f"/proc/self/task/{task}/comm").strip() for task in (native_id, os.getpid())]
    return names[0] if names[0] != names[1] else ""


def _read_start_time(native_id: int) -> StartTime | None:
    """When the thread was started, on the boot-time clock (resolution: one clock tick, 10 ms)."""
    fields = _read(f"/proc/self/task/{native_id}/stat").rpartition(")")[2].split() if native_id > 0 else []
    if len(fields) < 20:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return StartTime(int(fields[19]) * tick_ns, (int(fields[19]) + 1) * tick_ns)


def boottime_ns() -> int:
    """Now, on the clock of `ThreadInfo.start_time`."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
